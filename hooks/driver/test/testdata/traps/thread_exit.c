/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that end with work of theirs in flight, and a main thread that ends
 * before the others. */
#include "trap.h"

static void *submit_and_end(void *unused)
{
	(void)unused;
	OK(cuCtxSetCurrent(context));
	for (int i = 0; i < 5; i++)
		submit(CU_STREAM_PER_THREAD);
	pthread_exit(NULL);
}

static void *outlive_main(void *unused)
{
	(void)unused;
	OK(cuCtxSetCurrent(context));
	compute(10);
	say("outlived main");
	exit(0);
}

int main(void)
{
	pthread_t t[8];

	begin();
	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < 8; i++)
			t[i] = in_thread(submit_and_end);
		for (int i = 0; i < 8; i++)
			CHECK(pthread_join(t[i], NULL) == 0);
		OK(cuCtxSynchronize());
	}
	say("all ended");
	in_thread(outlive_main);
	pthread_exit(NULL);
}
