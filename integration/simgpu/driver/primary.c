/* SPDX-License-Identifier: Apache-2.0 */
/* Primary contexts: one a GPU and process, counted. */
#include "sim.h"

static CUresult enter_device(CUdevice dev, struct gpu **g)
{
	CUresult r = enter();

	if (r)
		return r;
	lock();
	if (!device_ok(dev))
		return leave(CUDA_ERROR_INVALID_DEVICE);
	*g = &sim.gpu[sim.device[dev]];
	return CUDA_SUCCESS;
}

static void drop(struct gpu *g)
{
	struct context *ctx = g->primary;

	g->primary = NULL;
	if (ctx)
		context_destroy_locked(ctx);
}

CUresult primary_retain_locked(CUdevice dev, struct context **out)
{
	struct gpu *g = &sim.gpu[sim.device[dev]];
	CUresult r;

	if (!g->primary) {
		r = context_create_locked(&g->primary, dev, g->primary_flags);
		if (r)
			return r;
		g->primary->primary = true;
	}
	g->primary_retains++;
	*out = g->primary;
	return CUDA_SUCCESS;
}

void primary_release_locked(struct context *ctx)
{
	struct gpu *g = &sim.gpu[ctx->gpu];

	/* After a reset there is another one, or none. */
	if (g->primary == ctx && g->primary_retains && --g->primary_retains == 0)
		drop(g);
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext *pctx, CUdevice dev)
{
	uint64_t from = clock_ns();
	struct gpu *g;
	CUresult r = enter_device(dev, &g);

	if (r)
		return r;
	if (!pctx)
		return leave(CUDA_ERROR_INVALID_VALUE);
	struct context *ctx;
	r = primary_retain_locked(dev, &ctx);
	if (r)
		return leave(r);
	*pctx = (CUcontext)ctx;
	log_setup("cuDevicePrimaryCtxRetain", NULL, ctx, from);
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	uint64_t from = clock_ns();
	struct gpu *g;
	CUresult r = enter_device(dev, &g);
	struct context *ctx;

	if (r)
		return r;
	ctx = g->primary;
	if (!ctx || g->primary_retains == 0)
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	if (--g->primary_retains == 0)
		drop(g);
	log_setup("cuDevicePrimaryCtxRelease", NULL, ctx, from);
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuDevicePrimaryCtxRelease(CUdevice dev)
{
	return cuDevicePrimaryCtxRelease_v2(dev);
}

/* Destroys it though it is retained; the next retain makes a new one. */
EXPORT CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	uint64_t from = clock_ns();
	struct gpu *g;
	CUresult r = enter_device(dev, &g);
	struct context *ctx;

	if (r)
		return r;
	ctx = g->primary;
	drop(g);
	g->primary_retains = 0;
	log_setup("cuDevicePrimaryCtxReset", NULL, ctx, from);
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuDevicePrimaryCtxReset(CUdevice dev)
{
	return cuDevicePrimaryCtxReset_v2(dev);
}

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
	struct gpu *g;
	CUresult r = enter_device(dev, &g);

	if (r)
		return r;
	if (flags)
		*flags = g->primary ? g->primary->flags : g->primary_flags;
	if (active)
		*active = g->primary != NULL;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags_v2(CUdevice dev, unsigned int flags)
{
	struct gpu *g;
	CUresult r = enter_device(dev, &g);

	if (r)
		return r;
	g->primary_flags = flags;
	if (g->primary)
		g->primary->flags = flags;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuDevicePrimaryCtxSetFlags(CUdevice dev, unsigned int flags)
{
	return cuDevicePrimaryCtxSetFlags_v2(dev, flags);
}
