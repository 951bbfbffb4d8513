/* SPDX-License-Identifier: Apache-2.0 */
/* A storm of signals, without SA_RESTART, hits threads that wait at the gate. */
#include <signal.h>
#include <sys/time.h>

#include "trap.h"

static volatile sig_atomic_t caught;

static void catch(int number)
{
	(void)number;
	caught++;
}

static void *compute_too(void *unused)
{
	(void)unused;
	OK(cuCtxSetCurrent(context));
	compute(100);
	return NULL;
}

int main(void)
{
	struct itimerval soon = { { 0, 300 }, { 0, 300 } };
	struct sigaction action = { .sa_handler = catch };
	sigset_t none;
	pthread_t t;

	CHECK(sigaction(SIGALRM, &action, NULL) == 0 && sigaction(SIGUSR1, &action, NULL) == 0);
	CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
	begin();
	t = in_thread(compute_too);
	for (int i = 0; i < 100; i++) {
		CHECK(pthread_kill(t, SIGUSR1) == 0);
		compute(1);
	}
	CHECK(pthread_join(t, NULL) == 0);
	CHECK(caught >= 100);
	CHECK(pthread_sigmask(SIG_BLOCK, NULL, &none) == 0 && !sigismember(&none, SIGALRM) && !sigismember(&none, SIGUSR1));
	say("no call was interrupted");
	return 0;
}
