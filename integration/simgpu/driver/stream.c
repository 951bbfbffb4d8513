/* SPDX-License-Identifier: Apache-2.0 */
/* Streams as places of order; their calls are in stream_api.c. */
#include <stdlib.h>

#include "sim.h"

struct stream *stream_new_locked(struct context *ctx, unsigned flags, int priority)
{
	struct stream *s = calloc(1, sizeof(*s));

	if (!s)
		return NULL;
	s->ctx = ctx;
	s->refs = 1;
	s->flags = flags;
	s->priority = priority;
	s->id = ++sim.next_id;
	s->next = ctx->streams;
	s->link = &ctx->streams;
	if (s->next)
		s->next->link = &s->next;
	ctx->streams = s;
	handle_add_locked(s, KIND_STREAM);
	return s;
}

/* The last reference goes when the handle is gone and nothing is in the queue. */
void stream_put_locked(struct stream *s)
{
	if (--s->refs > 0)
		return;
	if (s->link) {
		*s->link = s->next;
		if (s->next)
			s->next->link = s->link;
	}
	free(s->tail);
	free(s);
}

static struct stream *per_thread_stream(struct context *ctx)
{
	uint64_t me = thread_id();
	struct stream *s;

	for (s = ctx->streams; s; s = s->next)
		if (s->per_thread && s->thread == me)
			return s;
	s = stream_new_locked(ctx, 0, 0);
	if (s) {
		s->per_thread = true;
		s->thread = me;
	}
	return s;
}

CUresult stream_get_locked(struct context *ctx, CUstream h, bool per_thread, struct stream **out)
{
	if (h == CU_STREAM_PER_THREAD || (!h && per_thread))
		*out = per_thread_stream(ctx);
	else if (h == CU_STREAM_LEGACY || !h)
		*out = ctx->legacy;
	else {
		*out = handle_get_locked(h, KIND_STREAM);
		if (!*out)
			return CUDA_ERROR_INVALID_HANDLE;
		if ((*out)->detached)
			return CUDA_ERROR_STREAM_DETACHED;
		return CUDA_SUCCESS;
	}
	return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

bool point_done(const struct point *p)
{
	return p->stream->completed >= p->seq;
}

/* The legacy stream stands for all blocking streams of its context too. */
bool stream_idle_locked(const struct stream *s)
{
	if (s->completed != s->submitted)
		return false;
	if (!s->legacy)
		return true;
	for (const struct stream *o = s->ctx->streams; o; o = o->next)
		if (!(o->flags & CU_STREAM_NON_BLOCKING) && o->completed != o->submitted)
			return false;
	return true;
}

void wait_point_locked(struct stream *s, uint64_t seq)
{
	stream_ref(s); /* others may destroy it meanwhile */
	while (s->completed < seq)
		pthread_cond_wait(&sim.done, &sim.lock);
	stream_put_locked(s);
}

/* Waits for what is in these streams now; what comes later does not count. */
static void wait_streams(struct context *ctx, bool all)
{
	struct point *p;
	size_t n = 0, i = 0;

	for (struct stream *s = ctx->streams; s; s = s->next)
		n++;
	p = malloc((n + 1) * sizeof(*p));
	if (!p)
		abort();
	for (struct stream *s = ctx->streams; s; s = s->next)
		if (s->completed != s->submitted && (all || !(s->flags & CU_STREAM_NON_BLOCKING)))
			p[i++] = (struct point){ stream_ref(s), s->submitted };
	for (n = 0; n < i; n++) {
		wait_point_locked(p[n].stream, p[n].seq);
		stream_put_locked(p[n].stream);
	}
	free(p);
}

CUresult stream_sync_locked(struct stream *s)
{
	struct context *ctx = s->ctx;

	if (s->legacy)
		wait_streams(ctx, false);
	else
		wait_point_locked(s, s->submitted);
	pool_settle_locked();
	return ctx->error;
}

CUresult context_sync_locked(struct context *ctx)
{
	wait_streams(ctx, true);
	pool_settle_locked();
	return ctx->error;
}
