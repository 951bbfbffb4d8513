/* SPDX-License-Identifier: Apache-2.0 */
/* Threads are cancelled in the middle of a wait at the gate. */
#include "trap.h"

static void *submit_until_cancelled(void *unused)
{
	(void)unused;
	OK(cuCtxSetCurrent(context));
	for (;;) {
		submit(NULL);
		/* Not while the driver waits, with its own locks held. */
		CHECK(pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, NULL) == 0);
		OK(cuCtxSynchronize());
		CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, NULL) == 0);
		pthread_testcancel();
	}
	return NULL;
}

int main(void)
{
	pthread_t t[4];
	void *result;

	begin();
	for (int round = 0; round < 5; round++) {
		for (int i = 0; i < 4; i++)
			t[i] = in_thread(submit_until_cancelled);
		compute(5);
		for (int i = 0; i < 4; i++)
			CHECK(pthread_cancel(t[i]) == 0);
		for (int i = 0; i < 4; i++)
			CHECK(pthread_join(t[i], &result) == 0 && result == PTHREAD_CANCELED);
	}
	say("cancelled");
	compute(20);
	say("computes");
	return 0;
}
