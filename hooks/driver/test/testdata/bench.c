/* SPDX-License-Identifier: Apache-2.0 */
/* What a launch costs: the floor, the bare call, and the call through the
 * library, in turns, so that a noisy machine is noisy for all. Prints the least
 * of each in picoseconds a call. */
#include "test.h"

#include <time.h>

#define CALLS  200000
#define ROUNDS 40

static __typeof__(&cuLaunchKernel) target;
static CUstream stream;
static unsigned long counter;

static void floor_add(void)
{
	for (int i = 0; i < CALLS; i++)
		__atomic_fetch_add(&counter, 1, __ATOMIC_SEQ_CST);
}

static void calls(void)
{
	__typeof__(target) f = __atomic_load_n(&target, __ATOMIC_RELAXED);

	for (int i = 0; i < CALLS; i++)
		f(NULL, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

static unsigned long ps(void (*run)(void))
{
	struct timespec from, to;

	clock_gettime(CLOCK_MONOTONIC, &from);
	run();
	clock_gettime(CLOCK_MONOTONIC, &to);
	return ((unsigned long)(to.tv_sec - from.tv_sec) * 1000000000u + (unsigned long)to.tv_nsec - (unsigned long)from.tv_nsec) * 1000u / CALLS;
}

int main(void)
{
	static const char *const name[] = { "add", "bare", "explicit", "legacy", "per-thread" };
	unsigned long least[5] = { -1ul, -1ul, -1ul, -1ul, -1ul }, t;
	__typeof__(target) bare;
	CUcontext context;
	CUstream s;

	OK(cuInit(0));
	OK(cuCtxCreate_v2(&context, 0, 0));
	OK(cuStreamCreate(&s, 0));
	bare = (__typeof__(bare))fake("cuLaunchKernel");
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < 5; i++) {
			target = i == 1 ? bare : cuLaunchKernel;
			stream = i == 4 ? CU_STREAM_PER_THREAD : i == 3 ? NULL : s;
			t = ps(i == 0 ? floor_add : calls);
			least[i] = t < least[i] ? t : least[i];
		}
	}
	for (int i = 0; i < 5; i++)
		say("%s %lu", name[i], least[i]);
	say("done");
	return 0;
}
