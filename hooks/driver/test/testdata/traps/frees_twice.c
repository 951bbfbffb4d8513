/* SPDX-License-Identifier: Apache-2.0 */
/* frees_twice: what is freed twice, or was never allocated, leaves the numbers as
 * they are: no more is free than there is. */
#include "trap.h"

static size_t free_before, total;

static void say_memory(const char *what)
{
	size_t now, all;

	OK(cuMemGetInfo(&now, &all));
	say("%s: %s free, total %s", what, now == free_before ? "all is" : now > free_before ? "more is" : "less is",
	    all == total ? "the same" : "another");
}

int main(void)
{
	CUdeviceptr p, q;
	CUresult first, second, unknown;

	begin();
	OK(cuMemGetInfo(&free_before, &total));
	OK(cuMemAlloc(&p, 64 << 20));
	say_memory("allocated");
	first = cuMemFree(p);
	second = cuMemFree(p);
	unknown = cuMemFree((CUdeviceptr)0x123456789000);
	say("free: %d, again: %d, of nothing: %d", (int)first, (int)second, (int)unknown);
	say_memory("freed");
	say("more than there is: %d", (int)cuMemAlloc(&q, total + (64 << 20)));
	OK(cuMemAlloc(&q, free_before / 2));
	OK(cuMemFree(q));
	say_memory("at the end");
	return 0;
}
