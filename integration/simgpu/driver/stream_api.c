/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "sim.h"

static CUresult create(CUstream *out, unsigned flags, int priority)
{
	uint64_t from = clock_ns();
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	if (!out || flags & ~(unsigned)CU_STREAM_NON_BLOCKING)
		return leave(CUDA_ERROR_INVALID_VALUE);
	priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
	struct stream *s = stream_new_locked(ctx, flags, priority);
	if (!s)
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	*out = (CUstream)s;
	log_setup("cuStreamCreate", NULL, ctx, from);
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuStreamCreate(CUstream *out, unsigned int flags)
{
	return create(out, flags, 0);
}

EXPORT CUresult cuStreamCreateWithPriority(CUstream *out, unsigned int flags, int priority)
{
	return create(out, flags, priority);
}

/* Returns at once; what is in it still runs. */
EXPORT CUresult cuStreamDestroy_v2(CUstream h)
{
	CUresult r = enter();
	struct stream *s;

	if (r)
		return r;
	lock();
	s = handle_get_locked(h, KIND_STREAM);
	if (!s || s->legacy || s->per_thread)
		return leave(CUDA_ERROR_INVALID_HANDLE);
	capture_drop_stream_locked(s);
	handle_remove_locked(s);
	s->destroyed = true;
	stream_put_locked(s);
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuStreamDestroy(CUstream h)
{
	return cuStreamDestroy_v2(h);
}

/* A call on a stream that can not be captured. */
static CUresult enter_stream(CUstream h, bool per_thread, struct stream **s)
{
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	r = stream_get_locked(ctx, h, per_thread, s);
	return r ? leave(r) : CUDA_SUCCESS;
}

static CUresult forbidden(struct stream *s)
{
	CUresult r = CUDA_SUCCESS;

	if (s->legacy)
		r = capture_legacy_locked(s->ctx);
	if (!r)
		r = capture_forbid_locked(s);
	return r ? r : capture_unsafe_locked();
}

static CUresult query(CUstream h, bool per_thread)
{
	struct stream *s;
	CUresult r = enter_stream(h, per_thread, &s);

	if (r)
		return r;
	r = forbidden(s);
	if (r)
		return leave(r);
	return leave(stream_idle_locked(s) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

EXPORT CUresult cuStreamQuery(CUstream h)
{
	return query(h, false);
}

EXPORT CUresult cuStreamQuery_ptsz(CUstream h)
{
	return query(h, true);
}

static CUresult synchronize(CUstream h, bool per_thread)
{
	struct stream *s;
	CUresult r = enter_stream(h, per_thread, &s);

	if (r)
		return r;
	r = forbidden(s);
	return leave(r ? r : stream_sync_locked(s));
}

EXPORT CUresult cuStreamSynchronize(CUstream h)
{
	return synchronize(h, false);
}

EXPORT CUresult cuStreamSynchronize_ptsz(CUstream h)
{
	return synchronize(h, true);
}

static CUresult host_function(CUstream h, const struct host *fn, const char *name, bool per_thread)
{
	struct stream *s;
	CUresult r;

	if (!fn->fn && !fn->callback)
		return CUDA_ERROR_INVALID_VALUE;
	r = enter_stream(h, per_thread, &s);
	if (r)
		return r;
	if (fn->callback && (r = capture_forbid_locked(s)))
		return leave(r);
	return leave(submit_locked(&(struct submit){
		.name = name, .class = SIM_ORDER, .stream = s,
		.step = { .kind = STEP_HOST, .host = *fn } }, NULL));
}

EXPORT CUresult cuLaunchHostFunc(CUstream h, CUhostFn fn, void *data)
{
	return host_function(h, &(struct host){ .fn = fn, .data = data }, "cuLaunchHostFunc", false);
}

EXPORT CUresult cuLaunchHostFunc_ptsz(CUstream h, CUhostFn fn, void *data)
{
	return host_function(h, &(struct host){ .fn = fn, .data = data }, "cuLaunchHostFunc", true);
}

EXPORT CUresult cuStreamAddCallback(CUstream h, CUstreamCallback fn, void *data, unsigned int flags)
{
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	return host_function(h, &(struct host){ .callback = fn, .handle = h, .data = data }, "cuStreamAddCallback", false);
}

EXPORT CUresult cuStreamAddCallback_ptsz(CUstream h, CUstreamCallback fn, void *data, unsigned int flags)
{
	if (flags)
		return CUDA_ERROR_INVALID_VALUE;
	return host_function(h, &(struct host){ .callback = fn, .handle = h, .data = data }, "cuStreamAddCallback", true);
}

/* What a stream says of itself, in both default-stream flavours. */
#define STREAM_GET(NAME, TYPE, VALUE)                                                                                  \
	static CUresult get_##NAME(CUstream h, TYPE *out, bool per_thread)                                             \
	{                                                                                                              \
		struct stream *s;                                                                                      \
		CUresult r = enter_stream(h, per_thread, &s);                                                          \
                                                                                                                       \
		if (r)                                                                                                 \
			return r;                                                                                      \
		if (!out)                                                                                              \
			return leave(CUDA_ERROR_INVALID_VALUE);                                                        \
		*out = (TYPE)(VALUE);                                                                                  \
		return leave(CUDA_SUCCESS);                                                                            \
	}                                                                                                              \
	EXPORT CUresult NAME(CUstream h, TYPE *out)                                                                    \
	{                                                                                                              \
		return get_##NAME(h, out, false);                                                                      \
	}                                                                                                              \
	EXPORT CUresult NAME##_ptsz(CUstream h, TYPE *out)                                                             \
	{                                                                                                              \
		return get_##NAME(h, out, true);                                                                       \
	}

STREAM_GET(cuStreamGetPriority, int, s->priority)
STREAM_GET(cuStreamGetFlags, unsigned int, s->flags)
STREAM_GET(cuStreamGetId, unsigned long long, s->id)
STREAM_GET(cuStreamGetCtx, CUcontext, s->ctx)
STREAM_GET(cuStreamGetDevice, CUdevice, s->ctx->device)
