/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client that only looks: it asks vgpud which GPUs the vGPU has and what it
 * uses of them. It has no page, no thread and no grant, and can hold up nobody.
 *
 * All functions are thread-safe, and may be used in a forked child, which asks
 * by a connection of its own. They wait while vgpud is away, until they were
 * told once; from then on they answer what was told last. A call from a signal
 * handler that interrupted another one fails.
 */
#ifndef VGPU_OBSERVE_H
#define VGPU_OBSERVE_H

#include <stdbool.h>
#include <stdint.h>

#include "gate.h"
#include "wire.h"

struct vgpu_identity {
	uint32_t gpus;             /* of this vGPU */
	uint32_t count;            /* of uuid; 0: it is not bound */
	uint8_t uuid[VGPU_UUIDS][16];
};

struct vgpu_usage {
	uint64_t limit;            /* of memory on this GPU, in bytes */
	uint64_t used;             /* by all processes of the vGPU, in bytes */
	uint64_t others;           /* of the limit, by other vGPUs that share it */
	uint64_t held_ppm;         /* of the time of late */
	uint32_t processes;
};

/* Who the vGPU is; with bind, bound to GPUs. They stay its own until
 * vgpu_observe_end or the end of the process. 0, or -1 with *err. */
int vgpu_observe_identity(const char *dir, bool bind, struct vgpu_identity *identity, struct vgpu_gate_error *err);

/* What the vGPU uses of a bound GPU. list, unless NULL, gets the processes, to
 * be freed by the caller. 0, or -1 with *err. */
int vgpu_observe_usage(const char *dir, const uint8_t uuid[16], struct vgpu_usage *usage, struct vgpu_process **list,
		       struct vgpu_gate_error *err);

/* Forgets all and hangs up. */
void vgpu_observe_end(void);

#endif
