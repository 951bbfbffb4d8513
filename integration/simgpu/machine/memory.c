/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device memory as a number. Each process adds up its own; what a GPU has left
 * is found by summing the rows. So nothing has to be put right when a process
 * dies in the middle, and no lock can be left behind.
 */
#define _GNU_SOURCE
#include <time.h>

#include "machine.h"

#define TRIES 4

uint64_t machine_used(const struct machine *mc, uint32_t gpu)
{
	uint32_t rows = atomic_load(&mc->m->rows);
	uint64_t sum = atomic_load(&mc->m->gpu[gpu].is.foreign);

	for (uint32_t row = 0; row < rows; row++)
		sum += machine_has(&mc->m->proc[row], gpu);
	return sum;
}

uint64_t machine_has(const struct sim_proc *p, uint32_t gpu)
{
	return atomic_load(&p->used[gpu]) + atomic_load(&p->resident[gpu]);
}

bool machine_charge(struct machine *mc, uint32_t gpu, uint64_t bytes)
{
	_Atomic uint64_t *own = &mc->m->proc[mc->row].used[gpu];

	if (bytes > mc->m->memory)
		return false;
	/*
	 * Add first, look after: two that add at once may both find it full, never
	 * both find it fits. Hence a few tries, each at another moment.
	 */
	for (int i = 0; i < TRIES; i++) {
		atomic_fetch_add(own, bytes);
		uint64_t used = machine_used(mc, gpu);

		if (used > mc->m->memory)
			used -= machine_evict(mc, gpu, used - mc->m->memory, -1);
		if (used <= mc->m->memory)
			return true;
		atomic_fetch_sub(own, bytes);
		machine_bury_all(mc);
		struct timespec ts = { .tv_nsec = 10000 * (1 + (long)(mc->row * 7 + i * 3) % 11) };
		nanosleep(&ts, NULL);
	}
	return false;
}

void machine_uncharge(struct machine *mc, uint32_t gpu, uint64_t bytes)
{
	atomic_fetch_sub(&mc->m->proc[mc->row].used[gpu], bytes);
}
