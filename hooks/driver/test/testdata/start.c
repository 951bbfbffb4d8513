/* SPDX-License-Identifier: Apache-2.0 */
/* What a program that never calls CUDA pays for being linked with the library:
 * it starts itself over and over, in turn with the driver alone and with the
 * library before it. Prints the median of each in nanoseconds. */
#include "test.h"

#include <spawn.h>
#include <time.h>

#define TURNS 400

static unsigned long started(char *self, char *path)
{
	char *argv[] = { self, "child", NULL }, *env[] = { path, NULL };
	struct timespec from, to;
	int status;
	pid_t pid;

	clock_gettime(CLOCK_MONOTONIC, &from);
	CHECK(posix_spawn(&pid, self, NULL, NULL, argv, env) == 0);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	clock_gettime(CLOCK_MONOTONIC, &to);
	return (unsigned long)(to.tv_sec - from.tv_sec) * 1000000000u + (unsigned long)to.tv_nsec - (unsigned long)from.tv_nsec;
}

static int compare(const void *a, const void *b)
{
	const unsigned long *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

int main(int argc, char **argv)
{
	static char *const path[] = { "LD_LIBRARY_PATH=/.vgpu", "LD_LIBRARY_PATH=/vgpulib" };
	static const char *const name[] = { "driver", "library" };
	static unsigned long ns[2][TURNS];

	if (argc > 1)
		return cuInit == NULL; /* it needs the library */
	for (int turn = 0; turn < TURNS; turn++)
		for (int i = 0; i < 2; i++)
			ns[i][turn] = started(argv[0], path[i]);
	for (int i = 0; i < 2; i++) {
		qsort(ns[i], TURNS, sizeof(ns[i][0]), compare);
		say("%s %lu", name[i], ns[i][TURNS / 2]);
	}
	say("done");
	return 0;
}
