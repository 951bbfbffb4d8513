/* SPDX-License-Identifier: Apache-2.0 */
/* Memory as a number: what an allocation costs, and when there is none. */
#define _GNU_SOURCE
#include <unistd.h>

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

bool charge_managed_locked(uint32_t gpu, uint64_t bytes)
{
	if (!sim.mc.m->swap_rate)
		return charge_locked(gpu, bytes);
	if (struck(gpu) || !host_has(bytes))
		return false;
	machine_manage(&sim.mc, gpu, bytes);
	return true;
}

void uncharge_managed(uint32_t gpu, uint64_t bytes)
{
	if (sim.mc.m->swap_rate)
		machine_unmanage(&sim.mc, gpu, bytes);
	else
		machine_uncharge(&sim.mc, gpu, bytes);
}

bool host_has(uint64_t bytes)
{
	long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);

	return pages < 0 || bytes / (uint64_t)page <= (uint64_t)pages;
}
