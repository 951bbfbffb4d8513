/* SPDX-License-Identifier: Apache-2.0 */
/* What another thread finds in the environment during cuInit, and a program that
 * is executed after it. */
#include "trap.h"

static volatile int done;
static volatile long n;

static void *read_environment(void *unused)
{
	(void)unused;
	for (; !done; n++) {
		const char *v = getenv("TRAP_VARIABLE");

		CHECK(v && strcmp(v, "kept") == 0);
	}
	return NULL;
}

int main(void)
{
	pthread_t t;

	CHECK(setenv("TRAP_VARIABLE", "kept", 1) == 0);
	t = in_thread(read_environment);
	while (n == 0)
		usleep(100);
	begin();
	done = 1;
	CHECK(pthread_join(t, NULL) == 0);
	CHECK(system("echo \"child: ${CUDA_VISIBLE_DEVICES-(unset)}\"") == 0);
	say("parent: %s", getenv("CUDA_VISIBLE_DEVICES") ? getenv("CUDA_VISIBLE_DEVICES") : "(unset)");
	compute(1);
	return 0;
}
