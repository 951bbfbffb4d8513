/* SPDX-License-Identifier: Apache-2.0 */
/* waits_in_init: cuInit, with a signal handler. */
#include "../test.h"

#include <signal.h>

static void on_signal(int unused)
{
	(void)unused;
	CHECK(write(1, "handled\n", 8) == 8);
}

int main(void)
{
	signal(SIGUSR1, on_signal);
	say("begins");
	say("cuInit: %d", (int)cuInit(0));
	return 0;
}
