/* SPDX-License-Identifier: Apache-2.0 */
/* Pools of stream-ordered memory: making them, and which one a device uses. */
#include <stdlib.h>

#include "pool.h"

static struct pool *defaults[SIM_MAX_GPUS], *current[SIM_MAX_GPUS];

CUresult pool_new_locked(const CUmemPoolProps *props, struct pool **out)
{
	struct pool *p = calloc(1, sizeof(*p));

	if (!p)
		return CUDA_ERROR_OUT_OF_MEMORY;
	p->device = props->location.id;
	p->gpu = sim.device[p->device];
	p->fd = -1;
	p->id = ++sim.next_id;
	p->props = *props;
	p->access[p->device] = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
	p->follow_events = p->opportunistic = p->internal = 1;
	p->next = pools;
	pools = p;
	handle_add_locked(p, KIND_POOL);
	*out = p;
	return CUDA_SUCCESS;
}

static struct pool *default_pool(CUdevice dev)
{
	const CUmemPoolProps props = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = dev },
	};

	if (!defaults[dev] && pool_new_locked(&props, &defaults[dev]) == CUDA_SUCCESS)
		defaults[dev]->is_default = true;
	return defaults[dev];
}

struct pool *pool_current_locked(CUdevice dev)
{
	return current[dev] ? current[dev] : default_pool(dev);
}

static CUresult get_pool(CUmemoryPool *out, CUdevice dev, bool the_default)
{
	CUresult r = enter();

	if (r)
		return r;
	if (!device_ok(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	lock();
	struct pool *p = the_default ? default_pool(dev) : pool_current_locked(dev);
	*out = (CUmemoryPool)p;
	return leave(p ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

EXPORT CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice dev)
{
	return get_pool(out, dev, true);
}

EXPORT CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice dev)
{
	return get_pool(out, dev, false);
}

/* By location: only devices have pools here. */
static CUresult get_pool_at(CUmemoryPool *out, const CUmemLocation *at, CUmemAllocationType type, bool the_default)
{
	if (!out || !at)
		return CUDA_ERROR_INVALID_VALUE;
	if (type != CU_MEM_ALLOCATION_TYPE_PINNED || at->type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_NOT_SUPPORTED;
	return get_pool(out, at->id, the_default);
}

EXPORT CUresult cuMemGetDefaultMemPool(CUmemoryPool *out, CUmemLocation *at, CUmemAllocationType type)
{
	return get_pool_at(out, at, type, true);
}

EXPORT CUresult cuMemGetMemPool(CUmemoryPool *out, CUmemLocation *at, CUmemAllocationType type)
{
	return get_pool_at(out, at, type, false);
}

CUresult enter_pool(CUmemoryPool h, struct pool **p)
{
	CUresult r = enter();

	if (r)
		return r;
	lock();
	*p = handle_get_locked(h, KIND_POOL);
	return *p ? CUDA_SUCCESS : leave(CUDA_ERROR_INVALID_VALUE);
}

EXPORT CUresult cuDeviceSetMemPool(CUdevice dev, CUmemoryPool h)
{
	struct pool *p;
	CUresult r = enter_pool(h, &p);

	if (r)
		return r;
	if (!device_ok(dev))
		return leave(CUDA_ERROR_INVALID_DEVICE);
	if (p->device != dev || p->imported)
		return leave(CUDA_ERROR_INVALID_VALUE);
	current[dev] = p;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemSetMemPool(CUmemLocation *at, CUmemAllocationType type, CUmemoryPool h)
{
	if (!at)
		return CUDA_ERROR_INVALID_VALUE;
	if (type != CU_MEM_ALLOCATION_TYPE_PINNED || at->type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_NOT_SUPPORTED;
	return cuDeviceSetMemPool(at->id, h);
}

static CUresult props_check(const CUmemPoolProps *p)
{
	CUresult r = location_check(&p->location);

	if (r)
		return r;
	if (p->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED || p->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (p->allocType != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	return p->handleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props)
{
	uint64_t from = clock_ns();
	CUresult r = enter();
	struct pool *p;

	if (r)
		return r;
	if (!out || !props)
		return CUDA_ERROR_INVALID_VALUE;
	r = props_check(props);
	if (r)
		return r;
	lock();
	r = pool_new_locked(props, &p);
	if (!r)
		*out = (CUmemoryPool)p;
	log_setup("cuMemPoolCreate", NULL, NULL, from);
	return leave(r);
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool h)
{
	uint64_t from = clock_ns();
	struct pool *p;
	CUresult r = enter_pool(h, &p);

	if (r)
		return r;
	if (p->is_default)
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (current[p->device] == p)
		current[p->device] = NULL;
	handle_remove_locked(p);
	p->destroyed = true;
	pool_end_locked(p);
	log_setup("cuMemPoolDestroy", NULL, NULL, from);
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool h, size_t keep)
{
	uint64_t from = clock_ns();
	struct pool *p;
	CUresult r = enter_pool(h, &p);

	if (r)
		return r;
	pool_trim_locked(p, keep);
	log_setup("cuMemPoolTrimTo", NULL, NULL, from);
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemPoolSetAccess(CUmemoryPool h, const CUmemAccessDesc *map, size_t count)
{
	struct pool *p;
	CUresult r = enter_pool(h, &p);

	if (r)
		return r;
	if (!map)
		return leave(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; i < count; i++) {
		if (map[i].location.type != CU_MEM_LOCATION_TYPE_DEVICE || map[i].flags == CU_MEM_ACCESS_FLAGS_PROT_READ)
			return leave(CUDA_ERROR_INVALID_VALUE);
		if (!device_ok(map[i].location.id))
			return leave(CUDA_ERROR_INVALID_DEVICE);
		/* The device that the memory is on always has access. */
		if (map[i].location.id == p->device && map[i].flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
			return leave(CUDA_ERROR_INVALID_VALUE);
	}
	for (size_t i = 0; i < count; i++)
		p->access[map[i].location.id] = map[i].flags;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemPoolGetAccess(CUmemAccess_flags *flags, CUmemoryPool h, CUmemLocation *at)
{
	struct pool *p;
	CUresult r = enter_pool(h, &p);

	if (r)
		return r;
	if (!flags || !at || at->type != CU_MEM_LOCATION_TYPE_DEVICE)
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (!device_ok(at->id))
		return leave(CUDA_ERROR_INVALID_DEVICE);
	*flags = p->access[at->id];
	return leave(CUDA_SUCCESS);
}
