/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that take longer than they should, on demand. */
#include <string.h>

#include "sim.h"

void slow_locked(const char *name, uint32_t gpu)
{
	const struct sim_condition *is = &sim.mc.m->gpu[gpu].is;
	/* acquire: who sees the time sees the name */
	uint64_t ns = atomic_load_explicit(&is->slow_ns, memory_order_acquire);

	if (!ns || strncmp(name, is->slow, sizeof(is->slow)) != 0)
		return;
	unlock();
	clock_sleep_until(clock_ns() + ns, false);
	lock();
}
