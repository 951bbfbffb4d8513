/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIMGPU_POOL_H
#define SIMGPU_POOL_H

#include "extents.h"
#include "memory.h"

/* What a pool has of the GPU: it takes and gives back memory in these. */
struct chunk {
	uint64_t at, size;
	struct chunk *next;
};

/* Freed, but what may use it is still in its stream. */
struct pending {
	uint64_t at, size;
	struct point point;
	struct pending *next;
};

struct pool {
	struct handle h;
	CUdevice device;
	uint32_t gpu;
	bool is_default, destroyed;
	bool imported;
	int fd; /* of an imported one: what its pointers lie in; else -1 */
	uint32_t proc; /* of an imported one: whose it is */
	uint64_t id;
	CUmemPoolProps props;
	CUmemAccess_flags access[SIM_MAX_GPUS];
	int follow_events, opportunistic, internal;
	uint64_t threshold;
	uint64_t reserved, reserved_high, used, used_high;
	uint64_t live; /* allocations not freed yet */
	struct chunk *chunks;
	struct extents unused;
	struct pending *pending;
	struct pool *next; /* all pools */
};

/* pool.c */
CUresult pool_new_locked(const CUmemPoolProps *props, struct pool **out);
struct pool *pool_current_locked(CUdevice dev);
/* enter, lock, the pool. On failure unlocked. */
CUresult enter_pool(CUmemoryPool h, struct pool **p);

/* pool_memory.c */
CUresult pool_alloc_locked(struct pool *p, size_t size, struct stream *s, uint64_t *address);
/* Gives free chunks back until no more than keep bytes are left, if there are so many. */
bool pool_trim_locked(struct pool *p, uint64_t keep);
/* One that was destroyed goes when nothing of it is in use. */
void pool_end_locked(struct pool *p);
extern struct pool *pools;

#endif
