/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Time slicing between the processes of one GPU. The holder passes the turn to
 * the next one that wants it when its slice is over or it has nothing to run.
 * Nobody needs the holder to be well: a dead one is buried, and from one that is
 * long overdue (stopped by a signal) the turn is taken away, as hardware would.
 */
#define _GNU_SOURCE
#include "machine.h"

#define OWNER_BITS 12
#define OWNER_MASK ((1u << OWNER_BITS) - 1)
#define NOBODY 0u

/* How long over its slice a living holder may be. Engines of a busy host are late. */
#define OVERDUE_NS 50000000ull

_Static_assert(SIM_MAX_PROCS < OWNER_MASK, "a row fits into the turn word");

static uint32_t word_of(uint32_t old, uint32_t owner)
{
	return (((old >> OWNER_BITS) + 1) << OWNER_BITS) | owner;
}

static uint32_t bit_of(int row)
{
	return 1u << (row % 32);
}

/* The next row behind `row`, in a circle, that wants a turn and lives; or -1. */
static int next_wanting(struct machine *mc, struct sim_gpu *g, int row)
{
	int rows = (int)atomic_load(&mc->m->rows);

	for (int i = 1; i <= rows; i++) {
		int r = (row + i) % rows;

		if (!(atomic_load(&g->wanting[r / 64]) & (1ull << (r % 64))) || r == row)
			continue;
		if (machine_alive(mc, r))
			return r;
	}
	return -1;
}

bool turn_wanted(const struct machine *mc, uint32_t gpu)
{
	const struct sim_gpu *g = &mc->m->gpu[gpu];
	uint32_t words = (atomic_load_explicit(&mc->m->rows, memory_order_relaxed) + 63) / 64;

	for (uint32_t w = 0; w < words; w++)
		if (atomic_load(&g->wanting[w]))
			return true;
	return false;
}

bool turn_held(const struct machine *mc, uint32_t gpu)
{
	return (atomic_load(&mc->m->gpu[gpu].turn) & OWNER_MASK) == (uint32_t)mc->row + 1;
}

void turn_pass(struct machine *mc, uint32_t gpu)
{
	struct sim_gpu *g = &mc->m->gpu[gpu];
	uint32_t w = atomic_load(&g->turn);

	if ((w & OWNER_MASK) != (uint32_t)mc->row + 1)
		return;
	int next = next_wanting(mc, g, mc->row);
	uint32_t owner = next < 0 ? NOBODY : (uint32_t)next + 1;

	atomic_store(&g->since_ns, clock_ns());
	if (!atomic_compare_exchange_strong(&g->turn, &w, word_of(w, owner)))
		return; /* it was taken away */
	if (next >= 0)
		sim_futex_wake(&g->turn, bit_of(next));
	else if (turn_wanted(mc, gpu)) /* came between the look and the exchange */
		sim_futex_wake(&g->turn, UINT32_MAX);
}

static bool overdue(const struct sim_gpu *g, const struct machine *mc, uint64_t now)
{
	return now > atomic_load(&g->since_ns) + mc->m->slice_ns + mc->m->switch_ns + OVERDUE_NS;
}

static void wait_for_turn(struct machine *mc, struct sim_gpu *g)
{
	uint32_t self = (uint32_t)mc->row + 1;

	for (;;) {
		/* Again: whoever took the turn from us while we were stopped cleared it. */
		atomic_fetch_or(&g->wanting[mc->row / 64], 1ull << (mc->row % 64));
		uint32_t w = atomic_load(&g->turn);
		uint32_t owner = w & OWNER_MASK;
		uint64_t now = clock_ns();

		if (owner == self)
			return;
		if (owner != NOBODY && !machine_alive(mc, (int)owner - 1)) {
			machine_bury(mc, (int)owner - 1);
			if (atomic_load(&g->turn) != w)
				continue;
		} else if (owner == NOBODY || overdue(g, mc, now)) {
			atomic_store(&g->since_ns, now);
			if (!atomic_compare_exchange_strong(&g->turn, &w, word_of(w, self)))
				continue;
			/* One that is stopped gets no more turns until it runs. */
			if (owner != NOBODY)
				atomic_fetch_and(&g->wanting[(owner - 1) / 64], ~(1ull << ((owner - 1) % 64)));
			return;
		}
		/* Wakes by itself too: a holder that died wakes nobody. */
		sim_futex_wait(&g->turn, w, bit_of(mc->row), now + mc->m->slice_ns);
	}
}

bool turn_take(struct machine *mc, uint32_t gpu)
{
	struct sim_gpu *g = &mc->m->gpu[gpu];
	uint64_t bit = 1ull << (mc->row % 64);

	if (!turn_held(mc, gpu)) {
		wait_for_turn(mc, g);
		atomic_fetch_and(&g->wanting[mc->row / 64], ~bit);
	}
	return atomic_exchange(&g->last, (uint32_t)mc->row + 1) != (uint32_t)mc->row + 1;
}
