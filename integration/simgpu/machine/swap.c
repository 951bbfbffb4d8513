/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Managed memory that moves between GPU and host, as a number. What a process has
 * is on the GPU while there is room; who computes needs all of its own there, and
 * drives out that of others: of whoever used the GPU least recently first.
 */
#define _GNU_SOURCE
#include "machine.h"

/* As much of *from as there is, at most bytes. Another process may do the same. */
static uint64_t take(_Atomic uint64_t *from, uint64_t bytes)
{
	uint64_t n = atomic_load(from), some;

	do
		some = n < bytes ? n : bytes;
	while (some && !atomic_compare_exchange_weak(from, &n, n - some));
	return some;
}

void machine_manage(struct machine *mc, uint32_t gpu, uint64_t bytes)
{
	atomic_fetch_add(&mc->m->proc[mc->row].managed[gpu], bytes);
}

void machine_unmanage(struct machine *mc, uint32_t gpu, uint64_t bytes)
{
	struct sim_proc *p = &mc->m->proc[mc->row];
	uint64_t left = atomic_fetch_sub(&p->managed[gpu], bytes) - bytes, resident = atomic_load(&p->resident[gpu]);

	if (resident > left)
		take(&p->resident[gpu], resident - left);
}

uint64_t machine_evict(struct machine *mc, uint32_t gpu, uint64_t bytes, int spare)
{
	uint32_t rows = atomic_load(&mc->m->rows);
	uint64_t moved = 0;

	while (moved < bytes) {
		struct sim_proc *least = NULL;

		for (uint32_t row = 0; row < rows; row++) {
			struct sim_proc *p = &mc->m->proc[row];

			if ((int)row != spare && atomic_load(&p->resident[gpu]) &&
			    (!least || atomic_load(&p->ran_ns[gpu]) < atomic_load(&least->ran_ns[gpu])))
				least = p;
		}
		if (!least)
			break;
		moved += take(&least->resident[gpu], bytes - moved);
	}
	return moved;
}

uint64_t machine_swap(struct machine *mc, uint32_t gpu)
{
	struct sim_proc *p = &mc->m->proc[mc->row];
	uint64_t resident = atomic_load(&p->resident[gpu]), managed = atomic_load(&p->managed[gpu]);

	if (!managed)
		return 0;
	atomic_store(&p->ran_ns[gpu], clock_ns());
	if (managed <= resident)
		return 0;
	uint64_t in = managed - resident, out = 0, used = machine_used(mc, gpu);
	uint64_t room = used < mc->m->memory ? mc->m->memory - used : 0;

	if (in > room) {
		out = machine_evict(mc, gpu, in - room, mc->row);
		in = room + out; /* the rest is used from the host */
	}
	atomic_fetch_add(&p->resident[gpu], in);
	return in + out;
}
