/* SPDX-License-Identifier: Apache-2.0 */
/* abort in the middle of a turn, with work in flight. */
#include "trap.h"

int main(void)
{
	unsigned long_time = 3000000;
	void *arguments[] = { &long_time };

	begin();
	OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
	say("launched");
	await();
	abort();
}
