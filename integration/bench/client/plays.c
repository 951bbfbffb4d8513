/* SPDX-License-Identifier: Apache-2.0 */
/* What clients do. Each play says what its number is. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>

#include "../../../hooks/gate/gate.h"
#include "../../../hooks/gate/internal.h"
#include "client.h"

/* Who was not at the gate for so long before the GPU became free is no sample:
 * vgpud may not have taken in its PENDING yet. */
#define SETTLED_NS 50000

/* How long a burst goes on once somebody waits behind it. */
#define BURST_NS 100000

/* How deep a full queue is. */
#define DEPTH 2

static void submit(void)
{
	vgpu_gate_enter();
	__atomic_add_fetch(&flight, 1, __ATOMIC_SEQ_CST);
	vgpu_gate_leave();
}

/* A synchronising call that returns: all work is over. */
static void complete(void)
{
	__atomic_store_n(&flight, 0, __ATOMIC_SEQ_CST);
	vgpu_gate_complete();
}

static bool wanted(void)
{
	return __atomic_load_n(&vgpu_gate.page->wanted, __ATOMIC_SEQ_CST) != 0;
}

/* All take turns. A burst of work lasts until this process has been told that
 * somebody else waits, and then BURST_NS more; so somebody waits, asleep,
 * whenever a burst completes. A sample is from there to the moment at which the
 * next one's submission has passed the gate. Between two bursts of one process,
 * so many nanoseconds: one that comes back at once finds its own turn still
 * there, and takes it up again. */
static void handover(struct part *part)
{
	struct board *board = part->board;
	uint64_t arrived, passed;
	bool last = false;

	while (!last) {
		arrived = stamp();
		vgpu_gate_enter();
		passed = stamp();
		if (board->completed && board->by != part->me && arrived + SETTLED_NS < board->completed)
			last = take(board, passed - board->completed);
		__atomic_add_fetch(&flight, 1, __ATOMIC_SEQ_CST);
		vgpu_gate_leave();
		while (!wanted())
			pause_ns(20000);
		spin(BURST_NS);
		board->by = part->me;
		board->completed = stamp();
		complete();
		pause_ns(part->number);
	}
}

/* One after the other, so many nanoseconds apart: nobody holds the GPU but one
 * that has nothing to do. A sample is from before the gate to behind it. */
static void first(struct part *part)
{
	struct board *board = part->board;
	uint32_t turn;
	uint64_t from;
	bool last = false;

	while (!last) {
		while ((turn = __atomic_load_n(&board->baton, __ATOMIC_SEQ_CST)) % part->clients != part->me)
			sleep_while(&board->baton, turn);
		spin(part->number);
		from = stamp();
		vgpu_gate_enter();
		last = take(board, stamp() - from);
		__atomic_add_fetch(&flight, 1, __ATOMIC_SEQ_CST);
		vgpu_gate_leave();
		complete();
		set_and_wake(&board->baton, turn + 1);
	}
}

/* Alone: submits and synchronises, again and again. Once it has its grant, a
 * sample is such a burst, and messages are counted. */
static void kept(struct part *part)
{
	uint64_t from;

	submit();
	complete();
	__atomic_store_n(&part->slot->messages, 0, __ATOMIC_RELAXED);
	do {
		from = stamp();
		submit();
		complete();
	} while (!take(part->board, stamp() - from));
}

/* Bursts that are over at once, with so many nanoseconds between them. */
static void empty(struct part *part)
{
	for (;;) {
		submit();
		complete();
		pause_ns(part->number);
	}
}

/* One burst, and then nothing any more. */
static void once(struct part *part)
{
	(void)part;
	submit();
	complete();
}

/* The GPU of a client whose queue is never empty: one kernel after the other. */
static void *device(void *arg)
{
	struct part *part = arg;
	uint64_t from;
	uint32_t depth;

	for (;;) {
		sleep_while(&flight, 0);
		from = stamp();
		pause_ns(part->number);
		part->slot->busy_ns += stamp() - from;
		__atomic_add_fetch(&over, 1, __ATOMIC_RELAXED);
		depth = __atomic_sub_fetch(&flight, 1, __ATOMIC_SEQ_CST);
		syscall(SYS_futex, &flight, FUTEX_WAKE, 1, NULL, NULL, 0);
		if (depth == 0)
			vgpu_gate_complete();
	}
	return NULL;
}

/* Keeps a queue full of kernels of so many nanoseconds, for ever. */
static void full(struct part *part)
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, device, part) != 0)
		_exit(2);
	for (;;) {
		sleep_while(&flight, DEPTH);
		vgpu_gate_enter();
		__atomic_add_fetch(&flight, 1, __ATOMIC_SEQ_CST);
		vgpu_gate_leave();
		syscall(SYS_futex, &flight, FUTEX_WAKE, 1, NULL, NULL, 0);
	}
}

const struct play plays[] = {
	{ "handover", handover, true },
	{ "turns", handover, false },
	{ "first", first, true },
	{ "kept", kept, true },
	{ "empty", empty, false },
	{ "once", once, false },
	{ "full", full, false },
	{ 0 },
};
