/* SPDX-License-Identifier: Apache-2.0 */
/* crowd N [KIB]: N processes call cuInit at once, compute, and stay within so much
 * memory of the host. */
#include <sys/resource.h>

#include "trap.h"

#define MOST_KIB (64 << 10) /* beside the simulated driver */

int main(int argc, char **argv)
{
	int n = argc > 1 ? atoi(argv[1]) : 1, ready[2], go[2], status;
	long most_kib = argc > 2 ? atol(argv[2]) : MOST_KIB;
	struct rusage usage;
	char c;

	CHECK(pipe(ready) == 0 && pipe(go) == 0);
	for (int i = 0; i < n; i++) {
		pid_t pid = fork();

		CHECK(pid >= 0);
		if (pid > 0)
			continue;
		close(go[1]);
		CHECK(write(ready[1], "", 1) == 1);
		CHECK(read(go[0], &c, 1) == 0); /* its end is the start for all */
		begin();
		compute(1);
		exit(0);
	}
	for (int i = 0; i < n; i++)
		CHECK(read(ready[0], &c, 1) == 1);
	close(go[1]);
	for (int i = 0; i < n; i++) {
		CHECK(wait4(-1, &status, 0, &usage) > 0 && status == 0);
		CHECK(usage.ru_maxrss < most_kib);
	}
	say("%d processes computed", n);
	return 0;
}
