/* SPDX-License-Identifier: Apache-2.0 */
/* Allocating and freeing. */
#include "graph.h"
#include "memory.h"

#define PITCH 512u
#define REGISTER_FLAGS                                                                                                 \
	(CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP | CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY)

CUresult memory_alloc_call(uint64_t *out, size_t size, enum memory_kind kind, unsigned flags, const char *name)
{
	uint64_t from = clock_ns();
	struct context *ctx;
	CUresult r;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	r = enter_context(&ctx);
	if (r)
		return r;
	r = capture_unsafe_locked();
	if (!r)
		r = memory_alloc_locked(ctx, size, kind, flags, out);
	log_setup(name, NULL, ctx, from);
	return leave(r);
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size)
{
	return memory_alloc_call((uint64_t *)out, size, MEMORY_DEVICE, 0, "cuMemAlloc");
}

EXPORT CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned int element)
{
	if (!pitch || (element != 4 && element != 8 && element != 16) || width == 0 || height == 0 ||
	    width > SIZE_MAX / 2 || height > SIZE_MAX / (width + PITCH))
		return CUDA_ERROR_INVALID_VALUE;
	*pitch = (width + PITCH - 1) / PITCH * PITCH;
	return memory_alloc_call((uint64_t *)out, *pitch * height, MEMORY_DEVICE, 0, "cuMemAllocPitch");
}

EXPORT CUresult cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned int flags)
{
	if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)
		return CUDA_ERROR_INVALID_VALUE;
	return memory_alloc_call((uint64_t *)out, size, MEMORY_MANAGED, flags, "cuMemAllocManaged");
}

static CUresult alloc_host(void **out, size_t size, unsigned flags, const char *name)
{
	uint64_t at = 0;
	CUresult r;

	if (!out || flags & ~7u)
		return CUDA_ERROR_INVALID_VALUE;
	r = memory_alloc_call(&at, size, MEMORY_HOST, flags | CU_MEMHOSTALLOC_DEVICEMAP, name);
	if (!r)
		*out = (void *)(uintptr_t)at;
	return r;
}

EXPORT CUresult cuMemAllocHost_v2(void **out, size_t size)
{
	return alloc_host(out, size, 0, "cuMemAllocHost");
}

EXPORT CUresult cuMemHostAlloc(void **out, size_t size, unsigned int flags)
{
	return alloc_host(out, size, flags, "cuMemHostAlloc");
}

/* What a program maps, registers or opens, it unmaps, unregisters or closes. */
static bool can_free(const struct allocation *a, bool host)
{
	if (host)
		return a->kind == MEMORY_HOST;
	return a->kind == MEMORY_DEVICE || a->kind == MEMORY_MANAGED || a->kind == MEMORY_POOL ||
	       (a->kind == MEMORY_IMPORTED && a->pool);
}

/* Freeing waits for the context's work, as the real one does. Lets the mutex go. */
static CUresult free_at(struct context *ctx, uint64_t address, bool host)
{
	struct allocation *a = memory_find_locked(address);

	if (!a || a->base != address || !can_free(a, host))
		return CUDA_ERROR_INVALID_VALUE;
	if (a->graph && !graph_memory_release_locked(a->graph))
		return CUDA_ERROR_INVALID_VALUE;
	struct context *owner = a->ctx ? a->ctx : ctx;
	context_sync_locked(owner);
	CUresult r = memory_free_locked(address);
	pool_settle_locked();
	return r;
}

static CUresult free_call(uint64_t address, bool host, const char *name)
{
	uint64_t from = clock_ns();
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	if (address == 0)
		return leave(CUDA_SUCCESS);
	r = capture_unsafe_locked();
	if (!r)
		r = free_at(ctx, address, host);
	log_setup(name, NULL, ctx, from);
	return leave(r);
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr p)
{
	return free_call(p, false, "cuMemFree");
}

EXPORT CUresult cuMemFreeHost(void *p)
{
	return free_call((uint64_t)(uintptr_t)p, true, "cuMemFreeHost");
}

EXPORT CUresult cuMemHostRegister_v2(void *p, size_t size, unsigned int flags)
{
	uint64_t from = clock_ns();
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	if (flags & ~REGISTER_FLAGS)
		return leave(CUDA_ERROR_INVALID_VALUE);
	r = memory_register_locked(ctx, p, size, flags);
	log_setup("cuMemHostRegister", NULL, ctx, from);
	return leave(r);
}

EXPORT CUresult cuMemHostUnregister(void *p)
{
	uint64_t from = clock_ns();
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	context_sync_locked(ctx);
	r = memory_unregister_locked(p);
	log_setup("cuMemHostUnregister", NULL, ctx, from);
	return leave(r);
}

EXPORT CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *p, unsigned int flags)
{
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	struct allocation *a = memory_find_locked((uint64_t)(uintptr_t)p);
	if (!out || flags || !a || (a->kind != MEMORY_HOST && a->kind != MEMORY_REGISTERED && a->kind != MEMORY_MANAGED))
		return leave(CUDA_ERROR_INVALID_VALUE);
	*out = (CUdeviceptr)(uintptr_t)p; /* unified addressing */
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemHostGetFlags(unsigned int *flags, void *p)
{
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	struct allocation *a = memory_find_locked((uint64_t)(uintptr_t)p);
	if (!flags || !a || (a->kind != MEMORY_HOST && a->kind != MEMORY_REGISTERED))
		return leave(CUDA_ERROR_INVALID_VALUE);
	*flags = a->flags;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free, size_t *total)
{
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	if (!free || !total)
		return leave(CUDA_ERROR_INVALID_VALUE);
	machine_bury_all(&sim.mc);
	uint64_t used = machine_used(&sim.mc, ctx->gpu);
	*total = sim.mc.m->memory;
	*free = used < *total ? *total - used : 0;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr p)
{
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	struct allocation *a = memory_find_locked(p);
	if (!a)
		return leave(CUDA_ERROR_NOT_FOUND);
	if (base)
		*base = a->base;
	if (size)
		*size = a->size;
	return leave(CUDA_SUCCESS);
}
