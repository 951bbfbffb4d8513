/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of memory: what the files about it share. sim.h has what the others use. */
#ifndef SIMGPU_MEMORY_H
#define SIMGPU_MEMORY_H

#include "sim.h"

#define VMM_PAGE (2ull << 20) /* granularity of physical memory and its mappings */

/* Out of the table; what it was made of is the caller's affair. */
void memory_remove_locked(struct allocation *a);
/* The first one at or behind the address, or NULL. */
struct allocation *memory_next_locked(uint64_t address);
/* Whether any lies in the range. */
bool memory_any_locked(uint64_t from, uint64_t size);

/* memory_api.c: an allocation as a call of that name */
CUresult memory_alloc_call(uint64_t *out, size_t size, enum memory_kind kind, unsigned flags, const char *name);

/* charge.c: device memory as a number. An injected fault strikes here. */
bool charge_locked(uint32_t gpu, uint64_t bytes);
/* Managed memory, which may be more than there is where it can move. */
bool charge_managed_locked(uint32_t gpu, uint64_t bytes);
void uncharge_managed(uint32_t gpu, uint64_t bytes);
/* Whether the machine has so much at all: memory of the host is not counted. */
bool host_has(uint64_t bytes);

/* arena.c */
bool arena_alloc_low_locked(uint32_t gpu, size_t size, uint64_t *address);
/* The file that an address lies in, and where. */
int arena_file_locked(uint64_t address, uint64_t *offset);

/* window.c */
/* Address space, at the wish if that is free. */
bool window_take_locked(uint64_t size, uint64_t align, uint64_t wish, uint64_t *at);
void window_give_locked(uint64_t at, uint64_t size);
bool window_map_locked(uint64_t at, uint64_t size, int fd, uint64_t offset);
void window_unmap_locked(uint64_t at, uint64_t size);
/* What the program itself may do there: host memory that it mapped. */
bool window_show_locked(uint64_t at, uint64_t size, int fd, uint64_t offset, int prot);
void *window_host(uint64_t address);

/* physical.c */
struct physical {
	struct handle h;
	uint32_t refs;     /* of the handle */
	uint32_t mappings;
	uint32_t gpu;      /* where its device memory is */
	uint64_t size, charged, id;
	CUmemAllocationProp prop;
	int fd;
};
void physical_unmap_locked(struct physical *p); /* one mapping less */
void physical_retain_locked(struct physical *p);
/* Whether a location can be given memory: SUCCESS, or the error. */
CUresult location_check(const CUmemLocation *at);

/* reserve.c */
/* The reservation that has the whole range. */
bool reserve_find_locked(uint64_t at, uint64_t size, uint64_t *base, uint64_t *whole);

/* map.c */
void *map_at_locked(uint64_t address, size_t n, bool write);

/* import.c: memory of another process, at an address of ours */
CUresult import_locked(const struct allocation *like, int fd, uint64_t offset, size_t size, uint64_t *address);
void import_end_locked(const struct allocation *a);
/* The ordinal of a GPU of the machine, or -1: not visible. */
int device_of_gpu(uint32_t gpu);

/* pool_memory.c */
void pool_free_locked(struct allocation *a, struct stream *s, uint64_t seq);
void *pool_at_locked(uint64_t address, size_t n);
/* A pointer into an imported pool is gone. */
void pool_pointer_end_locked(struct pool *p);
bool pool_trim_all_locked(uint32_t gpu);
CUmemoryPool pool_handle(const struct pool *p);
CUmemAllocationHandleType pool_handle_types(const struct pool *p);

/* managed.c */
void managed_forget_locked(uint64_t base, size_t size);
void managed_prefetched_locked(uint64_t at, size_t n, CUmemLocation to);

#endif
