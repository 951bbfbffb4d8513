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
CUresult context_record_locked(struct context *ctx, const struct green *green, struct event *e, const char *name)
{
	if (e->ctx != ctx)
		return CUDA_ERROR_INVALID_HANDLE;
	if (!ctx->gather)
		ctx->gather = stream_new_locked(ctx, CU_STREAM_NON_BLOCKING, 0);
	if (!ctx->gather)
		return CUDA_ERROR_OUT_OF_MEMORY;
	e->refs++;
	return submit_locked(&(struct submit){
		.name = name, .class = SIM_ORDER, .stream = ctx->gather, .behind_all = true, .green = green,
		.step = { .kind = STEP_RECORD, .event = e } }, NULL);
}

/* What is submitted to any stream that exists now waits; the mutex may go meanwhile. */
CUresult context_wait_locked(struct context *ctx, const struct green *green, const struct event *e, const char *name)
{
	uint64_t newest = sim.next_id;
	CUresult r = CUDA_SUCCESS;

	for (struct stream *s = ctx->streams; s && !r;) {
		struct stream *next;

		stream_ref(s);
		if (s->id <= newest && !s->destroyed && (!green || s->green == green))
			r = submit_locked(&(struct submit){ .name = name, .class = SIM_ORDER, .stream = s, .event = e,
							    .step = { .kind = STEP_NOTHING } }, NULL);
		next = s->next;
		stream_put_locked(s);
		s = next;
	}
	return r;
}

EXPORT CUresult cuCtxRecordEvent(CUcontext hc, CUevent he)
{
	struct context *ctx;
	struct event *e;
	CUresult r = enter_both(hc, he, &ctx, &e);

	return r ? r : leave(context_record_locked(ctx, NULL, e, "cuCtxRecordEvent"));
}

EXPORT CUresult cuCtxWaitEvent(CUcontext hc, CUevent he)
{
	struct context *ctx;
	struct event *e;
	CUresult r = enter_both(hc, he, &ctx, &e);

	return r ? r : leave(context_wait_locked(ctx, NULL, e, "cuCtxWaitEvent"));
}
