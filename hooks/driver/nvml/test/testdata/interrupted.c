/* SPDX-License-Identifier: Apache-2.0 */
/* While a thread waits for its bind it is cancelled, another signal's handler
 * asks too, and others wait behind it. */
#include <errno.h>
#include <signal.h>

#include "test.h"

static _Atomic int in_handler = -1;

static void handler(int sig)
{
	int saved = errno;
	unsigned n;

	(void)sig;
	in_handler = nvmlDeviceGetCount_v2(&n);
	errno = saved;
}

static void *find(void *arg)
{
	(void)arg;
	device(0);
	say("found");
	pthread_testcancel();
	return NULL;
}

int main(void)
{
	struct sigaction act = { .sa_handler = handler };
	pthread_t waits;
	void *how;

	sigaction(SIGUSR1, &act, NULL);
	OK(nvmlInit_v2());
	CHECK(pthread_create(&waits, NULL, find, NULL) == 0);
	await(); /* it waits */
	pthread_kill(waits, SIGUSR1);
	while (in_handler == -1)
		usleep(100);
	IS(NVML_ERROR_UNKNOWN, in_handler);
	pthread_cancel(waits);
	say("asked");
	pthread_join(waits, &how);
	CHECK(how == PTHREAD_CANCELED);
	device(0); /* the lock is free */
	say("done");
	return 0;
}
