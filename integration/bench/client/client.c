/* SPDX-License-Identifier: Apache-2.0 */
/*
 * client PLAY SAMPLES DIR=NUMBER...
 *
 * One process for each DIR, the directory of a vGPU: each connects to vgpud there,
 * through the real gate, and binds. What NUMBER says depends on the play
 * (plays.c). Then this program prints "ready" and obeys the lines on its stdin:
 *
 *   go     lets them play. If the play is about samples it prints one a line and
 *          "done" once there are SAMPLES
 *   look   prints a line "client TIME BUSY MESSAGES" for each, and "done"
 *
 * At the end of stdin the processes are killed. That one ended before is a failure.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "../../../hooks/gate/gate.h"
#include "client.h"

uint32_t flight;
uint64_t over;

static struct slot *my_slot;

/* The linker puts it in the place of sendmsg, which the gate alone calls. */
ssize_t __real_sendmsg(int sock, const struct msghdr *msg, int flags);
ssize_t __wrap_sendmsg(int sock, const struct msghdr *msg, int flags);

ssize_t __wrap_sendmsg(int sock, const struct msghdr *msg, int flags)
{
	__atomic_add_fetch(&my_slot->messages, 1, __ATOMIC_RELAXED);
	return __real_sendmsg(sock, msg, flags);
}

static bool in_flight(void *arg)
{
	(void)arg;
	return __atomic_load_n(&flight, __ATOMIC_SEQ_CST) != 0;
}

static uint64_t completed(void *arg)
{
	(void)arg;
	return __atomic_load_n(&over, __ATOMIC_RELAXED);
}

bool take(struct board *board, uint64_t ns)
{
	uint32_t at = __atomic_fetch_add(&board->taken, 1, __ATOMIC_SEQ_CST);

	if (at < board->wanted)
		board->sample[at] = ns;
	if (at + 1 == board->wanted)
		set_and_wake(&board->done, 1);
	return board->wanted > 0 && at + 1 >= board->wanted;
}

static void child(const struct play *play, struct part *part, const char *dir)
{
	static const struct vgpu_gate_ops ops = { .in_flight = in_flight, .poll = in_flight, .completed = completed };
	struct vgpu_gate_error err;
	uint8_t uuid[16][16];

	my_slot = part->slot;
	if (vgpu_gate_start(dir, &ops, &err) != 0 || vgpu_gate_bind(uuid, 16, &err) < 1) {
		fprintf(stderr, "client: %s: %s\n", dir, err.text);
		_exit(2);
	}
	__atomic_add_fetch(&part->board->ready, 1, __ATOMIC_SEQ_CST);
	sleep_while(&part->board->go, 0);
	play->run(part);
	for (;;)
		pause();
}

/* Until all are ready. One that dies before takes the program with it. */
static void await(struct board *board, uint32_t clients)
{
	while (__atomic_load_n(&board->ready, __ATOMIC_SEQ_CST) < clients) {
		if (waitpid(-1, NULL, WNOHANG) > 0) {
			fprintf(stderr, "client: a process ended before it was ready\n");
			exit(2);
		}
		pause_ns(1000000);
	}
	puts("ready");
	fflush(stdout);
}

static void go(const struct play *play, struct board *board)
{
	set_and_wake(&board->go, 1);
	if (!play->samples)
		return;
	sleep_while(&board->done, 0);
	for (uint32_t i = 0; i < board->wanted; i++)
		printf("%llu\n", (unsigned long long)board->sample[i]);
}

static void look(struct board *board, uint32_t clients)
{
	for (uint32_t i = 0; i < clients; i++)
		printf("client %llu %llu %llu\n", (unsigned long long)stamp(),
		       (unsigned long long)__atomic_load_n(&board->slot[i].busy_ns, __ATOMIC_RELAXED),
		       (unsigned long long)__atomic_load_n(&board->slot[i].messages, __ATOMIC_RELAXED));
}

int main(int argc, char **argv)
{
	struct board *board = shared(sizeof(*board));
	uint32_t clients = argc > 3 ? (uint32_t)argc - 3 : 0;
	const struct play *play = plays;
	pid_t parent = getpid(), pid[MOST_CLIENTS];
	char line[16];
	bool failed = false;

	while (argc > 1 && play->name && strcmp(play->name, argv[1]) != 0)
		play++;
	if (clients == 0 || clients > MOST_CLIENTS || !play->name) {
		fprintf(stderr, "usage: client PLAY SAMPLES DIR=NUMBER...\n");
		return 2;
	}
	board->wanted = (uint32_t)atol(argv[2]);
	board->sample = shared((board->wanted + 1) * sizeof(board->sample[0]));
	for (uint32_t i = 0; i < clients; i++) {
		char *dir = argv[i + 3], *number = strrchr(dir, '=');
		struct part part = { .board = board, .slot = &board->slot[i], .me = i, .clients = clients };

		if (number) {
			*number = 0;
			part.number = strtoull(number + 1, NULL, 10);
		}
		pid[i] = fork();
		if (pid[i] < 0) {
			fprintf(stderr, "client: failed to fork: %s\n", strerror(errno));
			return 2;
		}
		if (pid[i] == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			prctl(PR_SET_TIMERSLACK, 1); /* as the threads of the gate */
			if (getppid() != parent)
				_exit(1);
			child(play, &part, dir);
		}
	}
	await(board, clients);
	while (fgets(line, sizeof(line), stdin)) {
		if (strcmp(line, "go\n") == 0)
			go(play, board);
		else
			look(board, clients);
		puts("done");
		fflush(stdout);
	}
	for (uint32_t i = 0; i < clients; i++) {
		int status;

		if (waitpid(pid[i], &status, WNOHANG) > 0) {
			fprintf(stderr, "client: process %u ended by itself, with status %#x\n", i, (unsigned)status);
			failed = true;
			continue;
		}
		kill(pid[i], SIGKILL);
		waitpid(pid[i], NULL, 0);
	}
	return failed ? 2 : 0;
}
