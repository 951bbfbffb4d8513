/* SPDX-License-Identifier: Apache-2.0 */
/*
 * floor SAMPLES CPU CPU
 *
 * What this machine takes for the three things that everything else is measured
 * in, between two processes, each on a CPU. Prints lines of a name and nanoseconds, one a sample:
 *   wake        one process sets a word and wakes another that sleeps on it,
 *               from before the first store to after the other's return
 *   add         one uncontended locked add, the mean of a thousand, in picoseconds
 *   round_trip  a message of the protocol's size to another process and back, over
 *               a SOCK_SEQPACKET socket
 */
#define _GNU_SOURCE
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "../../../hooks/gate/wire.h"
#include "stamp.h"

/* Before each wake the waker works for so long, as a burst does (plays.c): the
 * other one sleeps by then, as deep as it does there. */
#define WORK_NS 100000

struct ping {
	_Alignas(64) uint32_t word; /* odd: the child's turn */
	_Alignas(64) uint64_t sent;
	uint64_t took[];
};

static int cpu[2]; /* of this process and of its child */

static void use(int which)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(which, &set);
	if (sched_setaffinity(0, sizeof(set), &set) != 0) {
		perror("sched_setaffinity");
		exit(2);
	}
}

static pid_t child_of(pid_t parent)
{
	pid_t pid = fork();

	if (pid < 0) {
		perror("fork");
		exit(2);
	}
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (getppid() != parent)
			_exit(1);
		use(cpu[1]);
	}
	return pid;
}

static void wakes(long samples)
{
	struct ping *p = shared(sizeof(*p) + (size_t)samples * sizeof(p->took[0]));
	pid_t pid = child_of(getpid());
	uint32_t me = pid == 0;

	for (long i = 0; i < samples; i++) {
		if ((i & 1) == me) { /* wakes */
			spin(WORK_NS);
			p->sent = stamp();
			set_and_wake(&p->word, (uint32_t)i + 1);
		} else {
			sleep_while(&p->word, (uint32_t)i);
			p->took[i] = stamp() - p->sent;
		}
	}
	if (pid == 0)
		_exit(0);
	waitpid(pid, NULL, 0);
	for (long i = 0; i < samples; i++)
		printf("wake %llu\n", (unsigned long long)p->took[i]);
}

static void adds(long samples)
{
	uint64_t word = 0, from;

	for (long i = 0; i < samples; i++) {
		from = stamp();
		for (int n = 0; n < 1000; n++)
			__atomic_add_fetch(&word, 1, __ATOMIC_SEQ_CST);
		printf("add %llu\n", (unsigned long long)(stamp() - from));
	}
}

static void round_trips(long samples)
{
	char msg[VGPU_MSG_SIZE] = { 0 };
	int s[2];
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, s) != 0) {
		perror("socketpair");
		exit(2);
	}
	pid = child_of(getpid());
	if (pid == 0) {
		while (read(s[1], msg, sizeof(msg)) == (ssize_t)sizeof(msg) &&
		       write(s[1], msg, sizeof(msg)) == (ssize_t)sizeof(msg))
			;
		_exit(0);
	}
	for (long i = 0; i < samples; i++) {
		uint64_t from;

		spin(WORK_NS);
		from = stamp();
		if (write(s[0], msg, sizeof(msg)) != (ssize_t)sizeof(msg) ||
		    read(s[0], msg, sizeof(msg)) != (ssize_t)sizeof(msg)) {
			perror("round trip");
			exit(2);
		}
		printf("round_trip %llu\n", (unsigned long long)(stamp() - from));
	}
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

int main(int argc, char **argv)
{
	long samples = argc == 4 ? atol(argv[1]) : 0;

	if (samples <= 0) {
		fprintf(stderr, "usage: floor SAMPLES CPU CPU\n");
		return 2;
	}
	cpu[0] = atoi(argv[2]);
	cpu[1] = atoi(argv[3]);
	use(cpu[0]);
	wakes(samples);
	adds(samples);
	round_trips(samples);
	return 0;
}
