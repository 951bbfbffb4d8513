/* SPDX-License-Identifier: Apache-2.0 */
/* Clients of vgpud with the real gate (hooks/gate) and without a GPU: work is
 * time that passes. */
#ifndef BENCH_CLIENT_H
#define BENCH_CLIENT_H

#include <stdbool.h>

#include "stamp.h"

#define MOST_CLIENTS 1024

/* One process, and what it tells its parent. */
struct slot {
	/* When it came to the gate; written by it alone. */
	_Alignas(64) uint64_t arrived;
	uint64_t busy_ns;  /* time with work in flight */
	uint64_t messages; /* sent to vgpud */
};

/* Shared by all processes of one run. */
struct board {
	_Alignas(64) uint32_t ready; /* processes that are connected and bound */
	_Alignas(64) uint32_t go;
	_Alignas(64) uint32_t baton; /* whose turn it is, where only one may move */
	/* When and by whom work was seen complete last. Only who holds the GPU
	 * writes it, and who is granted next reads it. */
	_Alignas(64) uint64_t completed;
	uint32_t by;
	/* The samples: taken is the next index, done is set once all are there. */
	_Alignas(64) uint32_t taken;
	_Alignas(64) uint32_t done;
	uint32_t wanted; /* how many */
	uint64_t *sample;
	struct slot slot[MOST_CLIENTS];
};

/* What a child process needs to play its part. */
struct part {
	struct board *board;
	struct slot *slot;
	uint32_t me, clients;
	uint64_t number; /* of the play: nanoseconds, mostly */
};

struct play {
	const char *name;
	/* Runs in each process once all are ready; does not return before the
	 * parent has what it wanted, if then. */
	void (*run)(struct part *part);
	bool samples; /* ends by itself, with samples */
};

extern const struct play plays[];

/* Work in flight in this process, as the gate asks for it, and how much is over. */
extern uint32_t flight;
extern uint64_t over;

/* Takes one sample; true if that was the last one, never if none is wanted. */
bool take(struct board *board, uint64_t ns);

#endif
