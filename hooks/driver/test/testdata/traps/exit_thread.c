/* SPDX-License-Identifier: Apache-2.0 */
/* A thread ends the process while others wait at the gate. */
#include "trap.h"

static void *end(void *unused)
{
	(void)unused;
	_exit(3);
}

int main(void)
{
	begin();
	in_thread(submit_for_ever);
	in_thread(submit_for_ever);
	compute(3);
	say("computes");
	pthread_join(in_thread(end), NULL);
	return 1;
}
