/* SPDX-License-Identifier: Apache-2.0 */
/* A process forks, plainly and behind the C library's back, after it asked. Each
 * asks on by a connection of its own. */
#include <sched.h>
#include <sys/syscall.h>

#include "test.h"

static nvmlDevice_t d;

static unsigned long long used(void)
{
	nvmlMemory_t m;

	OK(nvmlDeviceGetMemoryInfo(d, &m));
	return m.used;
}

static void child(const char *who)
{
	char version[64];
	int (*driver_version)(char *, unsigned) = (void *)named("nvmlSystemGetDriverVersion");

	OK(driver_version(version, sizeof(version)));
	say("%s %llu", who, used());
	await();
	_exit(0);
}

int main(void)
{
	int status;
	pid_t pid;

	setvbuf(stdin, NULL, _IONBF, 0);
	OK(nvmlInit_v2());
	d = device(0);
	say("parent %llu", used());
	await();
	pid = fork();
	if (pid == 0)
		child("child");
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	say("parent %llu", used());
	await();
	pid = (pid_t)syscall(SYS_clone, 17 /* SIGCHLD */, 0, 0, 0, 0);
	if (pid == 0)
		child("clone");
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	say("parent %llu", used());
	await();
	/* A child that asks nothing keeps nothing of its parent's. */
	pid = fork();
	if (pid == 0) {
		await();
		_exit(0);
	}
	OK(nvmlShutdown());
	say("shut down");
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	say("done");
	return 0;
}
