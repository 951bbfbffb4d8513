/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One process that has the gate. It is linked once for each, with all its names
 * made local but that of process, which becomes process_a or process_b: each has
 * the gate's variables for itself.
 */
#include "gate.c"
#include "slots.c"
#include "thread.c"

#include "explore.h"

/* Nobody waits for the bound: who does keeps the turn from becoming idle, and no more. */
bool vgpu_gate_work_comes(void)
{
	return false;
}

/* The slot that a thread has from the beginning. */
static void adopt(struct vgpu_slot *slot)
{
	slot->word = &vgpu_gate.page->word;
	vgpu_gate_thread.slot = slot;
}

/* As the C library calls it. */
static void end(void)
{
	if (vgpu_gate_thread.slot)
		thread_ended(vgpu_gate_thread.slot);
}

extern const struct process process;
const struct process process = {
	.gate = &vgpu_gate,
	.enter = vgpu_gate_enter,
	.leave = vgpu_gate_leave,
	.complete = vgpu_gate_complete,
	.adopt = adopt,
	.end = end,
	.thread = run,
};
