/* SPDX-License-Identifier: Apache-2.0 */
/* vfork and posix_spawn after cuInit; what is executed computes too. */
#include <spawn.h>

#include "trap.h"

extern char **environ;

int main(int argc, char **argv)
{
	char *child[] = { argv[0], "child", NULL };
	int status;
	pid_t pid;

	begin();
	compute(3);
	if (argc > 1) {
		say("child computes");
		return 7;
	}
	pid = vfork();
	if (pid == 0) {
		execv("/proc/self/exe", child);
		_exit(127);
	}
	CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
	say_end("vfork", status);
	CHECK(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, child, environ) == 0);
	CHECK(waitpid(pid, &status, 0) == pid);
	say_end("posix_spawn", status);
	compute(3);
	say("parent computes");
	return 0;
}
