/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Green contexts: a part of a device's multiprocessors, in its primary context.
 * Their streams are streams of the primary context.
 */
#include <stdlib.h>

#include "resource.h"

struct green {
	struct handle h;
	struct context *ctx; /* the primary one, retained */
	uint64_t id;
	CUdevResource sm;
};

EXPORT CUresult cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc desc, CUdevice dev, unsigned int flags)
{
	uint64_t from = clock_ns();
	CUresult r = enter();

	if (r)
		return r;
	if (!out || flags != CU_GREEN_CTX_DEFAULT_STREAM)
		return CUDA_ERROR_INVALID_VALUE;
	if (!device_ok(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	lock();
	const struct resources *d = handle_get_locked(desc, KIND_RESOURCES);
	if (!d || d->device != dev)
		return leave(CUDA_ERROR_INVALID_VALUE);
	struct green *g = calloc(1, sizeof(*g));
	if (!g)
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	r = primary_retain_locked(dev, &g->ctx);
	if (r) {
		free(g);
		return leave(r);
	}
	g->id = ++sim.next_id;
	g->sm = d->sm;
	handle_add_locked(g, KIND_GREEN);
	*out = (CUgreenCtx)g;
	log_setup("cuGreenCtxCreate", NULL, g->ctx, from);
	return leave(CUDA_SUCCESS);
}

static CUresult enter_green(CUgreenCtx h, struct green **g)
{
	CUresult r = enter();

	if (r)
		return r;
	lock();
	*g = handle_get_locked(h, KIND_GREEN);
	if (!*g)
		return leave(CUDA_ERROR_INVALID_VALUE);
	return (*g)->ctx->destroyed ? leave(CUDA_ERROR_CONTEXT_IS_DESTROYED) : CUDA_SUCCESS;
}

/* Its streams stay, to be destroyed; every other call on them gives an error. */
EXPORT CUresult cuGreenCtxDestroy(CUgreenCtx h)
{
	uint64_t from = clock_ns();
	CUresult r = enter();

	if (r)
		return r;
	lock();
	struct green *g = handle_get_locked(h, KIND_GREEN);
	if (!g)
		return leave(CUDA_ERROR_INVALID_VALUE);
	struct context *ctx = g->ctx;
	for (struct stream *s = ctx->destroyed ? NULL : ctx->streams; s; s = s->next)
		if (s->green == g) {
			s->green = NULL;
			s->detached = true;
		}
	handle_remove_locked(g);
	free(g);
	primary_release_locked(ctx);
	log_setup("cuGreenCtxDestroy", NULL, ctx, from);
	return leave(CUDA_SUCCESS);
}

/* The primary context; what its own streams may use is not less for it. */
EXPORT CUresult cuCtxFromGreenCtx(CUcontext *out, CUgreenCtx h)
{
	struct green *g;
	CUresult r = enter_green(h, &g);

	if (r)
		return r;
	if (!out)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*out = (CUcontext)g->ctx;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuGreenCtxGetDevResource(CUgreenCtx h, CUdevResource *out, CUdevResourceType type)
{
	struct green *g;
	CUresult r = enter_green(h, &g);

	if (r)
		return r;
	if (!out || type != CU_DEV_RESOURCE_TYPE_SM)
		return leave(out ? CUDA_ERROR_INVALID_RESOURCE_TYPE : CUDA_ERROR_INVALID_VALUE);
	*out = g->sm;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuGreenCtxGetId(CUgreenCtx h, unsigned long long *id)
{
	struct green *g;
	CUresult r = enter_green(h, &g);

	if (r)
		return r;
	if (!id)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*id = g->id;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuGreenCtxStreamCreate(CUstream *out, CUgreenCtx h, unsigned int flags, int priority)
{
	uint64_t from = clock_ns();
	struct green *g;
	CUresult r = enter_green(h, &g);

	if (r)
		return r;
	if (!out || flags != CU_STREAM_NON_BLOCKING)
		return leave(CUDA_ERROR_INVALID_VALUE);
	priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
	struct stream *s = stream_new_locked(g->ctx, flags, priority);
	if (!s)
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	s->green = g;
	*out = (CUstream)s;
	log_setup("cuGreenCtxStreamCreate", NULL, g->ctx, from);
	return leave(CUDA_SUCCESS);
}

static CUresult enter_both(CUgreenCtx h, CUevent he, struct green **g, struct event **e)
{
	CUresult r = enter_green(h, g);

	if (r)
		return r;
	*e = handle_get_locked(he, KIND_EVENT);
	if (!*e)
		return leave(CUDA_ERROR_INVALID_HANDLE);
	for (const struct stream *s = (*g)->ctx->streams; s; s = s->next)
		if (s->green == *g && s->capture)
			return leave(capture_forbid_context_locked((*g)->ctx));
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGreenCtxRecordEvent(CUgreenCtx h, CUevent he)
{
	struct green *g;
	struct event *e;
	CUresult r = enter_both(h, he, &g, &e);

	return r ? r : leave(context_record_locked(g->ctx, g, e, "cuGreenCtxRecordEvent"));
}

EXPORT CUresult cuGreenCtxWaitEvent(CUgreenCtx h, CUevent he)
{
	struct green *g;
	struct event *e;
	CUresult r = enter_both(h, he, &g, &e);

	return r ? r : leave(context_wait_locked(g->ctx, g, e, "cuGreenCtxWaitEvent"));
}

/* A stream's green context and its resources, in both default-stream flavours. */
static CUresult enter_stream(CUstream h, bool per_thread, struct stream **s)
{
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	r = stream_get_locked(ctx, h, per_thread, s);
	return r ? leave(r) : CUDA_SUCCESS;
}

EXPORT CUresult cuStreamGetGreenCtx(CUstream h, CUgreenCtx *out)
{
	struct stream *s;
	CUresult r = enter_stream(h, false, &s);

	if (r)
		return r;
	if (!out)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*out = (CUgreenCtx)s->green;
	return leave(CUDA_SUCCESS);
}

static CUresult get_contexts(CUstream h, CUcontext *ctx, CUgreenCtx *green, bool per_thread)
{
	struct stream *s;
	CUresult r = enter_stream(h, per_thread, &s);

	if (r)
		return r;
	if (!ctx || !green)
		return leave(CUDA_ERROR_INVALID_VALUE);
	/* One of the two: a green context's stream has no other. */
	*green = (CUgreenCtx)s->green;
	*ctx = s->green ? NULL : (CUcontext)s->ctx;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuStreamGetCtx_v2(CUstream h, CUcontext *ctx, CUgreenCtx *green)
{
	return get_contexts(h, ctx, green, false);
}

EXPORT CUresult cuStreamGetCtx_v2_ptsz(CUstream h, CUcontext *ctx, CUgreenCtx *green)
{
	return get_contexts(h, ctx, green, true);
}

static CUresult get_resource(CUstream h, CUdevResource *out, CUdevResourceType type, bool per_thread)
{
	struct stream *s;
	CUresult r = enter_stream(h, per_thread, &s);

	if (r)
		return r;
	if (!out || type != CU_DEV_RESOURCE_TYPE_SM)
		return leave(out ? CUDA_ERROR_INVALID_RESOURCE_TYPE : CUDA_ERROR_INVALID_VALUE);
	*out = s->green ? s->green->sm : resource_of_device(s->ctx->device);
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuStreamGetDevResource(CUstream h, CUdevResource *out, CUdevResourceType type)
{
	return get_resource(h, out, type, false);
}

EXPORT CUresult cuStreamGetDevResource_ptsz(CUstream h, CUdevResource *out, CUdevResourceType type)
{
	return get_resource(h, out, type, true);
}
