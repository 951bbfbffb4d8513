/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered memory. A pool here holds nothing back: memory is taken at the
 * call and given back when the free is reached in its stream.
 */
#include <stdlib.h>

#include "sim.h"

struct pool {
	struct handle h;
	CUdevice device;
	bool is_default;
	cuuint64_t threshold;
};

static struct pool *defaults[SIM_MAX_GPUS], *current[SIM_MAX_GPUS];

static struct pool *pool_new(CUdevice dev)
{
	struct pool *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->device = dev;
	handle_add_locked(p, KIND_POOL);
	return p;
}

static struct pool *default_pool(CUdevice dev)
{
	if (!defaults[dev]) {
		defaults[dev] = pool_new(dev);
		if (defaults[dev])
			defaults[dev]->is_default = true;
	}
	return defaults[dev];
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
	struct pool *p = !the_default && current[dev] ? current[dev] : default_pool(dev);
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

static CUresult enter_pool(CUmemoryPool h, struct pool **p)
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
	if (!device_ok(dev) || p->device != dev)
		return leave(CUDA_ERROR_INVALID_VALUE);
	current[dev] = p;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props)
{
	CUresult r = enter();

	if (r)
		return r;
	if (!out || !props || props->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
	    props->location.type != CU_MEM_LOCATION_TYPE_DEVICE || !device_ok(props->location.id))
		return CUDA_ERROR_INVALID_VALUE;
	if (props->handleTypes != CU_MEM_HANDLE_TYPE_NONE)
		return CUDA_ERROR_NOT_SUPPORTED;
	lock();
	*out = (CUmemoryPool)pool_new(props->location.id);
	return leave(*out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

EXPORT CUresult cuMemPoolDestroy(CUmemoryPool h)
{
	struct pool *p;
	CUresult r = enter_pool(h, &p);

	if (r)
		return r;
	if (p->is_default)
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (current[p->device] == p)
		current[p->device] = NULL;
	handle_remove_locked(p);
	free(p);
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemPoolTrimTo(CUmemoryPool h, size_t keep)
{
	struct pool *p;
	CUresult r = enter_pool(h, &p);

	(void)keep;
	return r ? r : leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool h, CUmemPool_attribute a, void *value)
{
	struct pool *p;
	CUresult r = enter_pool(h, &p);

	if (r)
		return r;
	if (!value)
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (a == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
		p->threshold = *(cuuint64_t *)value;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool h, CUmemPool_attribute a, void *value)
{
	struct pool *p;
	CUresult r = enter_pool(h, &p);

	if (r)
		return r;
	if (!value)
		return leave(CUDA_ERROR_INVALID_VALUE);
	switch (a) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		*(int *)value = 1;
		break;
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		*(cuuint64_t *)value = p->threshold;
		break;
	default:
		return leave(CUDA_ERROR_NOT_SUPPORTED);
	}
	return leave(CUDA_SUCCESS);
}

static CUresult alloc_async(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream h, const char *name, bool per_thread)
{
	struct context *ctx;
	struct stream *s;
	uint64_t address;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	r = stream_get_locked(ctx, h, per_thread, &s);
	if (r)
		return leave(r);
	if (!out || (pool && !handle_get_locked(pool, KIND_POOL)))
		return leave(CUDA_ERROR_INVALID_VALUE);
	r = capture_forbid_locked(s); /* graphs with memory are not simulated */
	if (!r)
		r = memory_alloc_locked(s->ctx, size, MEMORY_DEVICE, 0, &address);
	if (r)
		return leave(r);
	r = submit_locked(&(struct submit){ .name = name, .class = SIM_ORDER, .stream = s,
					    .step = { .kind = STEP_NOTHING } }, NULL);
	if (r)
		memory_free_locked(address);
	else
		*out = address;
	return leave(r);
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream h)
{
	return alloc_async(out, size, NULL, h, "cuMemAllocAsync", false);
}

EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t size, CUstream h)
{
	return alloc_async(out, size, NULL, h, "cuMemAllocAsync", true);
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream h)
{
	return alloc_async(out, size, pool, h, "cuMemAllocFromPoolAsync", false);
}

EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream h)
{
	return alloc_async(out, size, pool, h, "cuMemAllocFromPoolAsync", true);
}

static CUresult free_async(CUdeviceptr p, CUstream h, bool per_thread)
{
	struct context *ctx;
	struct stream *s;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	r = stream_get_locked(ctx, h, per_thread, &s);
	if (r)
		return leave(r);
	const struct allocation *a = memory_find_locked(p);
	if (!a || a->base != p || a->kind != MEMORY_DEVICE)
		return leave(CUDA_ERROR_INVALID_VALUE);
	return leave(submit_locked(&(struct submit){
		.name = "cuMemFreeAsync", .class = SIM_ORDER, .stream = s,
		.step = { .kind = STEP_FREE, .address = p } }, NULL));
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr p, CUstream h)
{
	return free_async(p, h, false);
}

EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr p, CUstream h)
{
	return free_async(p, h, true);
}
