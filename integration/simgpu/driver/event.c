/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "shared_event.h"

#define EVENT_FLAGS (CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS)

void event_put_locked(struct event *e)
{
	if (--e->refs > 0)
		return;
	if (e->at.stream)
		stream_put_locked(e->at.stream);
	if (e->shared)
		shared_event_free_locked(e->shared);
	free(e->tail);
	free(e);
}

/* The time counts only if the event was not recorded anew meanwhile. */
void event_record_done_locked(struct event *e, struct op *op)
{
	if (e->at.stream == op->stream && e->at.seq == op->seq)
		e->done_ns = clock_ns();
	if (e->shared)
		shared_event_done(e->shared, op->number);
}

struct event *event_new_locked(struct context *ctx, unsigned flags, struct shared_event *shared)
{
	struct event *e = calloc(1, sizeof(*e));

	if (!e)
		return NULL;
	e->ctx = ctx;
	e->refs = 1;
	e->flags = flags;
	e->shared = shared;
	handle_add_locked(e, KIND_EVENT);
	return e;
}

static bool is_done(const struct event *e)
{
	if (e->shared)
		return shared_event_is_done(e->shared, shared_event_last(e->shared));
	return !e->recorded || point_done(&e->at);
}

EXPORT CUresult cuEventCreate(CUevent *out, unsigned int flags)
{
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	if (!out || flags & ~EVENT_FLAGS || (flags & CU_EVENT_INTERPROCESS && !(flags & CU_EVENT_DISABLE_TIMING)))
		return leave(CUDA_ERROR_INVALID_VALUE);
	struct shared_event *shared = flags & CU_EVENT_INTERPROCESS ? shared_event_new_locked() : NULL;
	if (flags & CU_EVENT_INTERPROCESS && !shared)
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	struct event *e = event_new_locked(ctx, flags, shared);
	if (!e) {
		if (shared)
			shared_event_free_locked(shared);
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	}
	*out = (CUevent)e;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuEventDestroy_v2(CUevent h)
{
	CUresult r = enter();
	struct event *e;

	if (r)
		return r;
	lock();
	e = handle_get_locked(h, KIND_EVENT);
	if (!e)
		return leave(CUDA_ERROR_INVALID_HANDLE);
	handle_remove_locked(e);
	event_put_locked(e);
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuEventDestroy(CUevent h)
{
	return cuEventDestroy_v2(h);
}

static CUresult get(CUevent h, struct event **e)
{
	CUresult r = enter();

	if (r)
		return r;
	lock();
	*e = handle_get_locked(h, KIND_EVENT);
	return *e ? CUDA_SUCCESS : leave(CUDA_ERROR_INVALID_HANDLE);
}

static CUresult record(CUevent h, CUstream hs, unsigned flags, bool per_thread)
{
	struct context *ctx;
	struct stream *s;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	struct event *e = handle_get_locked(h, KIND_EVENT);
	if (!e)
		return leave(CUDA_ERROR_INVALID_HANDLE);
	r = stream_get_locked(ctx, hs, per_thread, &s);
	if (r)
		return leave(r);
	if (flags & ~1u)
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (s->ctx != e->ctx)
		return leave(CUDA_ERROR_INVALID_HANDLE);
	if (flags && !s->capture)
		return leave(CUDA_ERROR_INVALID_VALUE); /* external is of captures only */
	e->refs++;
	return leave(submit_locked(&(struct submit){
		.name = "cuEventRecord", .class = SIM_ORDER, .stream = s,
		.step = { .kind = STEP_RECORD, .event = e, .external = flags & 1u } }, NULL));
}

EXPORT CUresult cuEventRecord(CUevent e, CUstream s)
{
	return record(e, s, 0, false);
}

EXPORT CUresult cuEventRecord_ptsz(CUevent e, CUstream s)
{
	return record(e, s, 0, true);
}

EXPORT CUresult cuEventRecordWithFlags(CUevent e, CUstream s, unsigned int flags)
{
	return record(e, s, flags, false);
}

EXPORT CUresult cuEventRecordWithFlags_ptsz(CUevent e, CUstream s, unsigned int flags)
{
	return record(e, s, flags, true);
}

EXPORT CUresult cuEventQuery(CUevent h)
{
	struct event *e;
	CUresult r = get(h, &e);

	if (r)
		return r;
	if (capture_event_locked(e))
		return leave(CUDA_ERROR_CAPTURED_EVENT);
	r = capture_unsafe_locked();
	if (r || e->ctx->error)
		return leave(r ? r : e->ctx->error);
	return leave(is_done(e) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY);
}

EXPORT CUresult cuEventSynchronize(CUevent h)
{
	struct event *e;
	CUresult r = get(h, &e);

	if (r)
		return r;
	if (capture_event_locked(e))
		return leave(CUDA_ERROR_CAPTURED_EVENT);
	r = capture_unsafe_locked();
	if (r)
		return leave(r);
	struct context *ctx = e->ctx;
	e->refs++;
	if (e->shared)
		shared_event_wait_locked(e->shared);
	else if (e->recorded)
		wait_point_locked(e->at.stream, e->at.seq);
	event_put_locked(e);
	pool_settle_locked();
	return leave(ctx->error);
}

static CUresult elapsed(float *ms, CUevent a, CUevent b)
{
	CUresult r = enter();

	if (r)
		return r;
	lock();
	struct event *from = handle_get_locked(a, KIND_EVENT), *to = handle_get_locked(b, KIND_EVENT);
	if (!from || !to)
		return leave(CUDA_ERROR_INVALID_HANDLE);
	if (!ms)
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (capture_event_locked(from) || capture_event_locked(to))
		return leave(CUDA_ERROR_CAPTURED_EVENT);
	if (!from->recorded || !to->recorded || (from->flags | to->flags) & CU_EVENT_DISABLE_TIMING)
		return leave(CUDA_ERROR_INVALID_HANDLE);
	if (!point_done(&from->at) || !point_done(&to->at))
		return leave(CUDA_ERROR_NOT_READY);
	*ms = (float)((double)(int64_t)(to->done_ns - from->done_ns) / 1e6);
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuEventElapsedTime(float *ms, CUevent a, CUevent b)
{
	return elapsed(ms, a, b);
}

EXPORT CUresult cuEventElapsedTime_v2(float *ms, CUevent a, CUevent b)
{
	return elapsed(ms, a, b);
}

/* What other processes recorded is no place in a stream of ours: the number is waited for. */
static CUresult wait_shared(struct stream *s, struct event *e)
{
	CUresult r = capture_forbid_locked(s);

	if (r)
		return r;
	e->refs++;
	return submit_locked(&(struct submit){
		.name = "cuStreamWaitEvent", .class = SIM_ORDER, .stream = s,
		.step = { .kind = STEP_WAIT_SHARED, .event = e, .number = shared_event_last(e->shared) } }, NULL);
}

static CUresult stream_wait(CUstream hs, CUevent h, unsigned flags, bool per_thread)
{
	struct context *ctx;
	struct stream *s;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	struct event *e = handle_get_locked(h, KIND_EVENT);
	if (!e)
		return leave(CUDA_ERROR_INVALID_HANDLE);
	r = stream_get_locked(ctx, hs, per_thread, &s);
	if (r)
		return leave(r);
	if (flags & ~1u || (flags && !s->capture))
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (e->shared)
		return leave(wait_shared(s, e));
	return leave(submit_locked(&(struct submit){
		.name = "cuStreamWaitEvent", .class = SIM_ORDER, .stream = s, .event = e, .external = flags,
		.step = { .kind = STEP_NOTHING } }, NULL));
}

EXPORT CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned int flags)
{
	return stream_wait(s, e, flags, false);
}

EXPORT CUresult cuStreamWaitEvent_ptsz(CUstream s, CUevent e, unsigned int flags)
{
	return stream_wait(s, e, flags, true);
}
