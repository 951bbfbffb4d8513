/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "sim.h"

#define SCHED_FLAGS 0xffu

static void stack_remove(const struct context *ctx)
{
	if (self.depth && self.stack[self.depth - 1] == ctx)
		self.depth--;
}

static CUresult push(struct context *ctx)
{
	if (self.depth == MAX_STACK)
		return CUDA_ERROR_INVALID_CONTEXT;
	self.stack[self.depth++] = ctx;
	return CUDA_SUCCESS;
}

static CUresult create(CUcontext *pctx, unsigned flags, CUdevice dev, const char *name)
{
	uint64_t from = clock_ns();
	struct context *ctx = NULL;
	CUresult r = enter();

	if (r)
		return r;
	if (!pctx || flags & ~SCHED_FLAGS)
		return CUDA_ERROR_INVALID_VALUE;
	lock();
	if (!device_ok(dev))
		return leave(CUDA_ERROR_INVALID_DEVICE);
	r = context_create_locked(&ctx, dev, flags);
	if (!r)
		r = push(ctx);
	if (!r)
		*pctx = (CUcontext)ctx;
	log_setup(name, NULL, ctx, from);
	return leave(r);
}

EXPORT CUresult cuCtxCreate(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
	return create(pctx, flags, dev, "cuCtxCreate");
}

EXPORT CUresult cuCtxCreate_v2(CUcontext *pctx, unsigned int flags, CUdevice dev)
{
	return create(pctx, flags, dev, "cuCtxCreate");
}

EXPORT CUresult cuCtxCreate_v3(CUcontext *pctx, CUexecAffinityParam *p, int n, unsigned int flags, CUdevice dev)
{
	if (p || n)
		return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
	return create(pctx, flags, dev, "cuCtxCreate");
}

EXPORT CUresult cuCtxCreate_v4(CUcontext *pctx, CUctxCreateParams *p, unsigned int flags, CUdevice dev)
{
	if (p && (p->execAffinityParams || p->numExecAffinityParams))
		return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
	if (p && p->cigParams)
		return CUDA_ERROR_NOT_SUPPORTED;
	return create(pctx, flags, dev, "cuCtxCreate");
}

EXPORT CUresult cuCtxDestroy_v2(CUcontext h)
{
	uint64_t from = clock_ns();
	CUresult r = enter();
	struct context *ctx;

	if (r)
		return r;
	lock();
	ctx = context_get_locked(h);
	if (!ctx || ctx->primary)
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	stack_remove(ctx);
	context_destroy_locked(ctx);
	log_setup("cuCtxDestroy", NULL, ctx, from);
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxDestroy(CUcontext h)
{
	return cuCtxDestroy_v2(h);
}

EXPORT CUresult cuCtxPushCurrent_v2(CUcontext h)
{
	CUresult r = enter();
	struct context *ctx;

	if (r)
		return r;
	lock();
	ctx = context_get_locked(h);
	return leave(ctx ? push(ctx) : CUDA_ERROR_INVALID_CONTEXT);
}

EXPORT CUresult cuCtxPushCurrent(CUcontext h)
{
	return cuCtxPushCurrent_v2(h);
}

EXPORT CUresult cuCtxPopCurrent_v2(CUcontext *out)
{
	CUresult r = enter();

	if (r)
		return r;
	if (self.depth == 0)
		return CUDA_ERROR_INVALID_CONTEXT;
	self.depth--;
	if (out)
		*out = (CUcontext)self.stack[self.depth];
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxPopCurrent(CUcontext *out)
{
	return cuCtxPopCurrent_v2(out);
}

EXPORT CUresult cuCtxSetCurrent(CUcontext h)
{
	CUresult r = enter();
	struct context *ctx;

	if (r)
		return r;
	lock();
	ctx = context_get_locked(h);
	if (h && !ctx)
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	if (!h)
		self.depth = self.depth ? self.depth - 1 : 0;
	else if (self.depth)
		self.stack[self.depth - 1] = ctx;
	else
		r = push(ctx);
	return leave(r);
}

EXPORT CUresult cuCtxGetCurrent(CUcontext *out)
{
	CUresult r = enter();

	if (r)
		return r;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = self.depth ? (CUcontext)self.stack[self.depth - 1] : NULL;
	return CUDA_SUCCESS;
}

/*
 * The calls that CUDA 13 gave a context: NULL means the current one. So does
 * here what is no living context: ctypes clients that try "_v2" first (numba
 * 0.56) call them without the argument.
 */
static CUresult enter_given(CUcontext h, struct context **ctx)
{
	CUresult r = enter();

	if (r)
		return r;
	lock();
	*ctx = context_get_locked(h);
	if (*ctx)
		return CUDA_SUCCESS;
	unlock();
	return enter_context(ctx);
}

static CUresult get_device(CUdevice *out, CUcontext h)
{
	struct context *ctx;
	CUresult r = enter_given(h, &ctx);

	if (r)
		return r;
	if (!out)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*out = ctx->device;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxGetDevice(CUdevice *out)
{
	return get_device(out, NULL);
}

EXPORT CUresult cuCtxGetDevice_v2(CUdevice *out, CUcontext h)
{
	return get_device(out, h);
}

static CUresult synchronize(CUcontext h)
{
	struct context *ctx;
	CUresult r = enter_given(h, &ctx);

	if (r)
		return r;
	r = capture_forbid_context_locked(ctx);
	return leave(r ? r : context_sync_locked(ctx));
}

EXPORT CUresult cuCtxSynchronize(void)
{
	return synchronize(NULL);
}

EXPORT CUresult cuCtxSynchronize_v2(CUcontext h)
{
	return synchronize(h);
}

EXPORT CUresult cuCtxGetFlags(unsigned int *flags)
{
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	if (!flags)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*flags = ctx->flags;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxSetFlags(unsigned int flags)
{
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	ctx->flags = flags;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxGetId(CUcontext h, unsigned long long *id)
{
	struct context *ctx;
	CUresult r = enter_given(h, &ctx);

	if (r)
		return r;
	if (!id)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*id = ctx->id;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxGetApiVersion(CUcontext h, unsigned int *version)
{
	struct context *ctx;
	CUresult r = enter_given(h, &ctx);

	if (r)
		return r;
	if (!version)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*version = 3020;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxGetLimit(size_t *value, CUlimit limit)
{
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	if (!value || limit >= sizeof(ctx->limits) / sizeof(ctx->limits[0]))
		return leave(value ? CUDA_ERROR_UNSUPPORTED_LIMIT : CUDA_ERROR_INVALID_VALUE);
	*value = ctx->limits[limit];
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxSetLimit(CUlimit limit, size_t value)
{
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	if (limit >= sizeof(ctx->limits) / sizeof(ctx->limits[0]))
		return leave(CUDA_ERROR_UNSUPPORTED_LIMIT);
	ctx->limits[limit] = value;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return leave(CUDA_SUCCESS);
}

static CUresult only_context(void)
{
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	return r ? r : leave(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxGetCacheConfig(CUfunc_cache *config)
{
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	*config = CU_FUNC_CACHE_PREFER_NONE;
	return only_context();
}

EXPORT CUresult cuCtxSetCacheConfig(CUfunc_cache config)
{
	(void)config;
	return only_context();
}

EXPORT CUresult cuCtxGetSharedMemConfig(CUsharedconfig *config)
{
	if (!config)
		return CUDA_ERROR_INVALID_VALUE;
	*config = CU_SHARED_MEM_CONFIG_FOUR_BYTE_BANK_SIZE;
	return only_context();
}

EXPORT CUresult cuCtxSetSharedMemConfig(CUsharedconfig config)
{
	(void)config;
	return only_context();
}

EXPORT CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags)
{
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	if (flags || !context_get_locked(peer))
		return leave(flags ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT);
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuCtxDisablePeerAccess(CUcontext peer)
{
	return cuCtxEnablePeerAccess(peer, 0);
}

EXPORT CUresult cuProfilerStart(void)
{
	return only_context();
}

EXPORT CUresult cuProfilerStop(void)
{
	return only_context();
}
