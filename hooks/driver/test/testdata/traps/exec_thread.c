/* SPDX-License-Identifier: Apache-2.0 */
/* A thread executes another program while others wait at the gate. */
#include "trap.h"

static char *self;

static void *execute(void *unused)
{
	char *args[] = { self, "again", NULL };

	(void)unused;
	execv("/proc/self/exe", args);
	return NULL;
}

int main(int argc, char **argv)
{
	begin();
	if (argc > 1) {
		compute(3);
		say("computes again");
		return 0;
	}
	self = argv[0];
	in_thread(submit_for_ever);
	in_thread(submit_for_ever);
	compute(3);
	say("computes");
	pthread_join(in_thread(execute), NULL);
	return 1;
}
