/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One process that has the gate. It is linked once for each, with all its names
 * made local but that of process, which becomes process_a or process_b: each has
 * the gate's variables for itself.
 */
#include "gate.c"
#include "thread.c"

#include "explore.h"

extern const struct process process;
const struct process process = {
	.gate = &vgpu_gate,
	.enter = vgpu_gate_enter,
	.leave = vgpu_gate_leave,
	.complete = vgpu_gate_complete,
	.thread = run,
};
