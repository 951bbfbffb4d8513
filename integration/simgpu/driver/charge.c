/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory as a number: what an allocation costs, and when there is none. */
#include "memory.h"

/* Whether this is the allocation that an injected fault strikes. */
static bool struck(uint32_t gpu)
{
	_Atomic uint32_t *left = &sim.mc.m->gpu[gpu].is.oom_at;
	uint32_t n = atomic_load(left);

	while (n && !atomic_compare_exchange_weak(left, &n, n - 1))
		;
	return n == 1;
}

bool charge_locked(uint32_t gpu, uint64_t bytes)
{
	if (struck(gpu))
		return false;
	if (machine_charge(&sim.mc, gpu, bytes))
		return true;
	/* What pools hold for later is of more use now. */
	return pool_trim_all_locked(gpu) && machine_charge(&sim.mc, gpu, bytes);
}
