/* SPDX-License-Identifier: Apache-2.0 */
/* How much work may be in flight, as vgpud says in the page. */
#define _GNU_SOURCE
#include "internal.h"

/* Relaxed: a bound that is read a moment late is met a moment late. */
static uint32_t or_default(uint32_t *field, uint32_t otherwise)
{
	uint32_t us = __atomic_load_n(field, __ATOMIC_RELAXED);

	return us ? us : otherwise;
}

uint32_t vgpu_gate_bound_us(bool *budget)
{
	struct vgpu_page *page = vgpu_gate.page;

	*budget = false;
	if (!page)
		return 0;
	*budget = __atomic_load_n(&page->wanted, __ATOMIC_RELAXED) ||
		  now_ns() < __atomic_load_n(&page->expected_ns, __ATOMIC_RELAXED);
	if (*budget)
		return or_default(&page->drain_us, VGPU_DRAIN_US);
	return or_default(&page->queue_us, VGPU_QUEUE_US);
}

/* Of the thread that looked last, if several wait: the others look again soon. A
 * time, not a count: a thread that never comes back keeps nothing. */
static uint64_t comes_ns;

void vgpu_gate_comes(uint64_t until_ns)
{
	__atomic_store_n(&comes_ns, until_ns, __ATOMIC_RELAXED);
}

bool vgpu_gate_work_comes(void)
{
	uint64_t until = __atomic_load_n(&comes_ns, __ATOMIC_RELAXED);

	return until && now_ns() < until;
}
