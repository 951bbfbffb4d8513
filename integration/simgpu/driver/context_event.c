/* SPDX-License-Identifier: Apache-2.0 */
/* Events of a whole context. */
#include "sim.h"

static CUresult enter_both(CUcontext hc, CUevent he, struct context **ctx, struct event **e)
{
	CUresult r = enter();

	if (r)
		return r;
	lock();
	*ctx = context_get_locked(hc);
	*e = handle_get_locked(he, KIND_EVENT);
	if (!*ctx)
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	if (!*e)
		return leave(CUDA_ERROR_INVALID_HANDLE);
	if ((*ctx)->error)
		return leave((*ctx)->error);
	r = capture_forbid_context_locked(*ctx);
	return r ? leave(r) : CUDA_SUCCESS;
}

/* A hidden stream of the context takes the record, behind all the others. */
EXPORT CUresult cuCtxRecordEvent(CUcontext hc, CUevent he)
{
	struct context *ctx;
	struct event *e;
	CUresult r = enter_both(hc, he, &ctx, &e);

	if (r)
		return r;
	if (e->ctx != ctx)
		return leave(CUDA_ERROR_INVALID_HANDLE);
	if (!ctx->gather)
		ctx->gather = stream_new_locked(ctx, CU_STREAM_NON_BLOCKING, 0);
	if (!ctx->gather)
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	e->refs++;
	return leave(submit_locked(&(struct submit){
		.name = "cuCtxRecordEvent", .class = SIM_ORDER, .stream = ctx->gather, .behind_all = true,
		.step = { .kind = STEP_RECORD, .event = e } }, NULL));
}

/* What is submitted to any stream that exists now waits; the mutex may go meanwhile. */
EXPORT CUresult cuCtxWaitEvent(CUcontext hc, CUevent he)
{
	struct context *ctx;
	struct event *e;
	CUresult r = enter_both(hc, he, &ctx, &e);

	if (r)
		return r;
	uint64_t newest = sim.next_id;
	for (struct stream *s = ctx->streams; s && !r;) {
		struct stream *next;

		if (s->id <= newest && !s->destroyed)
			r = submit_locked(&(struct submit){ .name = "cuCtxWaitEvent", .class = SIM_ORDER, .stream = stream_ref(s), .event = e,
							    .step = { .kind = STEP_NOTHING } }, NULL);
		else
			stream_ref(s);
		next = s->next;
		stream_put_locked(s);
		s = next;
	}
	return leave(r);
}
