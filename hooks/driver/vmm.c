/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Physical memory with a handle (cuMemCreate). It belongs to no context and
 * lives until all its handles are released and it is mapped nowhere. What comes
 * from another process is charged there.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>

#include "memory.h"

enum { HANDLE, MAPPING };

struct physical {
	unsigned gpu;
	uint64_t bytes;
	unsigned refs;             /* handles and mappings, also those being ended */
};

/* A handle, as often as it was given out; or a mapping, with its length. */
struct reference {
	struct vgpu_node node;
	struct physical *physical;
	uint64_t n;
};

static struct {
	pthread_mutex_t lock;
	struct vgpu_hash hash;
} vmm = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* With the lock held. */
static void put(struct physical *p, uint64_t n)
{
	p->refs -= (unsigned)n;
	if (p->refs > 0)
		return;
	vgpu_gate_refund(p->gpu, p->bytes);
	free(p);
}

static struct reference *find(unsigned kind, uint64_t key)
{
	return (struct reference *)vgpu_hash_find(&vmm.hash, kind, key);
}

/* Enters a reference that p already counts. */
static void enter(struct reference *ref, unsigned kind, uint64_t key, uint64_t n, struct physical *p)
{
	struct reference *stale = (struct reference *)vgpu_hash_take(&vmm.hash, kind, key);

	/* The driver gave it out again: the former one ended unseen. */
	if (stale) {
		put(stale->physical, kind == HANDLE ? stale->n : 1);
		free(stale);
	}
	*ref = (struct reference){ .node = { .kind = kind, .key = key }, .physical = p, .n = n };
	vgpu_hash_add(&vmm.hash, &ref->node);
}

/* ---- handles ----------------------------------------------------------------- */

static int gpu_of(const CUmemAllocationProp *prop)
{
	if (!prop)
		return -1;
	switch (prop->location.type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		return vgpu_device_gpu(prop->location.id);
	case CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN:
		return vgpu_device_gpu(prop->location.localized.deviceId);
	default:
		return -1; /* the host's */
	}
}

VGPU_HOOK(vgpu_mem_create, cuMemCreate, CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
	  unsigned long long flags)
{
	struct reference *ref;
	struct physical *p;
	CUresult r = CUDA_ERROR_OUT_OF_MEMORY;
	int gpu;

	if (!vgpu_managed(caller) || (gpu = gpu_of(prop)) < 0 || !vgpu_may_wait(NULL))
		return real(handle, size, prop, flags);
	p = calloc(1, sizeof(*p));
	ref = calloc(1, sizeof(*ref));
	vgpu_thread.nested++;
	if (p && ref && vgpu_memory_reserve(gpu, size)) {
		*p = (struct physical){ .gpu = (unsigned)gpu, .bytes = size, .refs = 1 };
		r = real(handle, size, prop, flags);
		pthread_mutex_lock(&vmm.lock);
		if (r == CUDA_SUCCESS) {
			enter(ref, HANDLE, *handle, 1, p);
			ref = NULL;
		} else {
			put(p, 1);
		}
		pthread_mutex_unlock(&vmm.lock);
		p = NULL;
	}
	vgpu_thread.nested--;
	free(p);
	free(ref);
	return r;
}

VGPU_HOOK(vgpu_mem_release, cuMemRelease, CUmemGenericAllocationHandle handle)
{
	struct reference *ref;
	struct physical *p = NULL;
	CUresult r;

	if (!vgpu_managed(caller))
		return real(handle);
	vgpu_thread.nested++;
	/* Before the driver is asked: it may give the handle out again. */
	pthread_mutex_lock(&vmm.lock);
	ref = find(HANDLE, handle);
	if (ref) {
		p = ref->physical;
		if (--ref->n == 0)
			vgpu_hash_take(&vmm.hash, HANDLE, handle);
		else
			ref = NULL;
	}
	pthread_mutex_unlock(&vmm.lock);
	r = real(handle);
	pthread_mutex_lock(&vmm.lock);
	if (p && r == CUDA_SUCCESS) {
		put(p, 1);
	} else if (p && ref) {
		enter(ref, HANDLE, handle, 1, p);
		ref = NULL;
	} else if (p && find(HANDLE, handle)) {
		find(HANDLE, handle)->n++;
	} else if (p) {
		put(p, 1); /* another thread released the last one meanwhile */
	}
	pthread_mutex_unlock(&vmm.lock);
	free(ref);
	vgpu_thread.nested--;
	return r;
}

static bool holds(struct vgpu_node *n, const void *address)
{
	return n->kind == MAPPING && (uintptr_t)address - n->key < ((struct reference *)n)->n;
}

/* With the lock held: the memory behind a handle or, without one, an address. */
static struct physical *known(CUmemGenericAllocationHandle handle, const void *address)
{
	struct reference *ref = find(HANDLE, handle);

	if (!ref && address)
		ref = find(MAPPING, (uintptr_t)address);
	if (!ref && address)
		ref = (struct reference *)vgpu_hash_find_if(&vmm.hash, holds, address);
	return ref ? ref->physical : NULL;
}

/* The driver gave out a handle of memory that may be known. */
static void given_out(CUmemGenericAllocationHandle handle, const void *address)
{
	struct reference *more = calloc(1, sizeof(*more)), *ref;
	struct physical *p;

	pthread_mutex_lock(&vmm.lock);
	ref = find(HANDLE, handle);
	p = known(handle, address);
	if (ref) {
		ref->n++;
		p->refs++;
	} else if (p && more) {
		p->refs++;
		enter(more, HANDLE, handle, 1, p);
		more = NULL;
	}
	pthread_mutex_unlock(&vmm.lock);
	free(more);
}

VGPU_HOOK(vgpu_mem_retain, cuMemRetainAllocationHandle, CUmemGenericAllocationHandle *handle, void *address)
{
	CUresult r;

	if (!vgpu_managed(caller))
		return real(handle, address);
	vgpu_thread.nested++;
	r = real(handle, address);
	if (r == CUDA_SUCCESS)
		given_out(*handle, address);
	vgpu_thread.nested--;
	return r;
}

VGPU_HOOK(vgpu_mem_import, cuMemImportFromShareableHandle, CUmemGenericAllocationHandle *handle, void *os_handle,
	  CUmemAllocationHandleType type)
{
	CUresult r;

	if (!vgpu_managed(caller))
		return real(handle, os_handle, type);
	vgpu_thread.nested++;
	r = real(handle, os_handle, type);
	if (r == CUDA_SUCCESS)
		given_out(*handle, NULL); /* one that this process exported itself */
	vgpu_thread.nested--;
	return r;
}

/* ---- mappings ---------------------------------------------------------------- */

VGPU_HOOK(vgpu_mem_map, cuMemMap, CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
	  unsigned long long flags)
{
	struct reference *ref;
	struct physical *p;
	CUresult r;

	if (!vgpu_managed(caller))
		return real(ptr, size, offset, handle, flags);
	ref = calloc(1, sizeof(*ref));
	if (!ref)
		return CUDA_ERROR_OUT_OF_MEMORY;
	vgpu_thread.nested++;
	/* Counted first: another thread may release the handle as soon as the
	 * driver has mapped it. */
	pthread_mutex_lock(&vmm.lock);
	p = known(handle, NULL);
	if (p)
		p->refs++;
	pthread_mutex_unlock(&vmm.lock);
	r = real(ptr, size, offset, handle, flags);
	pthread_mutex_lock(&vmm.lock);
	if (p && r == CUDA_SUCCESS) {
		enter(ref, MAPPING, ptr, size, p);
		ref = NULL;
	} else if (p) {
		put(p, 1);
	}
	pthread_mutex_unlock(&vmm.lock);
	free(ref);
	vgpu_thread.nested--;
	return r;
}

struct span {
	uint64_t from, size;
};

static bool within(struct vgpu_node *n, const void *arg)
{
	const struct span *span = arg;

	return n->kind == MAPPING && n->key - span->from < span->size;
}

/* With the lock held. One whole mapping is the usual case. */
static struct vgpu_node *take_mappings(uint64_t from, uint64_t size)
{
	struct reference *ref = find(MAPPING, from);
	struct span span = { .from = from, .size = size };

	if (ref && ref->n == size)
		return vgpu_hash_take(&vmm.hash, MAPPING, from);
	return vgpu_hash_take_if(&vmm.hash, within, &span);
}

VGPU_HOOK(vgpu_mem_unmap, cuMemUnmap, CUdeviceptr ptr, size_t size)
{
	struct vgpu_node *n, *next;
	struct reference *ref;
	CUresult r;

	if (!vgpu_managed(caller))
		return real(ptr, size);
	vgpu_thread.nested++;
	pthread_mutex_lock(&vmm.lock);
	n = take_mappings(ptr, size);
	pthread_mutex_unlock(&vmm.lock);
	r = real(ptr, size);
	pthread_mutex_lock(&vmm.lock);
	for (; n; n = next) {
		next = n->next;
		ref = (struct reference *)n;
		if (r == CUDA_SUCCESS) {
			put(ref->physical, 1);
			free(ref);
		} else {
			vgpu_hash_add(&vmm.hash, n);
		}
	}
	pthread_mutex_unlock(&vmm.lock);
	vgpu_thread.nested--;
	return r;
}
