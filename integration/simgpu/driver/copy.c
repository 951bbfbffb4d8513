/* SPDX-License-Identifier: Apache-2.0 */
/* Copies: what all the calls for it have in common. The calls are in copy_api.c. */
#include <stdlib.h>
#include <string.h>

#include "copy.h"
#include "graph.h"

/* Copies from pageable memory up to these sizes only stage it and return. */
#define SMALL_SYNC (64u << 10)
#define SMALL_ASYNC (1u << 20)

static size_t planes(const struct copy *c)
{
	return c->depth ? c->depth : 1;
}

bool copy_extent(size_t planes, size_t slice, size_t rows, size_t pitch, size_t width, size_t *n)
{
	size_t behind, below;

	return !__builtin_mul_overflow(planes - 1, slice, &behind) && !__builtin_mul_overflow(rows - 1, pitch, &below) &&
	       !__builtin_add_overflow(behind, below, n) && !__builtin_add_overflow(*n, width, n);
}

/* Device addresses must be inside one allocation; host memory is the caller's affair. */
static bool range_ok(const struct copy *c, uint64_t at, size_t pitch, size_t slice)
{
	size_t n;

	if (!copy_extent(planes(c), slice, c->height, pitch, c->width, &n))
		return false;
	return memory_at_locked(at, n) || memory_is_pageable_locked(at);
}

bool copy_ok_locked(const struct copy *c)
{
	return c->dst && c->src && range_ok(c, c->dst, c->dst_pitch, c->dst_slice) &&
	       range_ok(c, c->src, c->src_pitch, c->src_slice);
}

/* A call that says "device" takes any memory that the driver knows there, and no other. */
static bool sides_ok(const struct copy *c, const struct copy_mode *m)
{
	return !(m->to_device && memory_is_pageable_locked(c->dst)) && !(m->from_device && memory_is_pageable_locked(c->src));
}

static bool stage(struct copy *c)
{
	char *to = malloc(c->width * c->height * planes(c));

	c->staged = to;
	if (!to)
		return false;
	for (size_t z = 0; z < planes(c); z++)
		for (size_t y = 0; y < c->height; y++, to += c->width)
			memcpy(to, (char *)(uintptr_t)c->src + z * c->src_slice + y * c->src_pitch, c->width);
	return true;
}

CUresult copy_submit_locked(struct context *ctx, struct stream *s, struct copy c, const struct copy_mode *m, bool source_now)
{
	CUresult r = CUDA_SUCCESS;
	uint64_t seq;

	/* What a graph allocates is not there while it is captured. */
	bool later = s->capture && (graph_memory_find_locked(c.dst) || graph_memory_find_locked(c.src));
	if (!sides_ok(&c, m) || (!later && !copy_ok_locked(&c)))
		return CUDA_ERROR_INVALID_VALUE;
	/* Before anything waits: a synchronous copy spoils a capture it would disturb. */
	if (!m->async) {
		r = s->legacy ? capture_legacy_locked(ctx) : capture_forbid_locked(s);
		if (!r)
			r = capture_unsafe_locked();
		if (r)
			return r;
	}
	bool from_pageable = memory_is_pageable_locked(c.src), to_pageable = memory_is_pageable_locked(c.dst);
	bool device = memory_is_device(c.src) && memory_is_device(c.dst);
	bool small = c.width * c.height * planes(&c) <= (m->async ? SMALL_ASYNC : SMALL_SYNC);

	if (from_pageable && !to_pageable && !s->capture && (small || source_now)) {
		if (!m->async && (r = stream_sync_locked(s)))
			return r;
		if (!stage(&c))
			return CUDA_ERROR_OUT_OF_MEMORY;
	}
	bool staged = c.staged != NULL, captured = s->capture != NULL;
	r = submit_locked(&(struct submit){
		.name = m->name, .class = SIM_WORK, .stream = s,
		.step = { .kind = STEP_COPY, .copy = c } }, &seq);
	if (r || captured)
		return r;
	/* With pageable memory also the asynchronous call returns when it is there. */
	bool wait = m->async ? !staged && (to_pageable || from_pageable) : !staged && !device;
	if (wait) {
		wait_point_locked(s, seq);
		r = ctx->error;
	}
	return r;
}

CUresult copy_call(const struct copy *c, CUstream h, const struct copy_mode *m)
{
	struct context *ctx;
	struct stream *s;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	r = stream_get_locked(ctx, h, m->per_thread, &s);
	if (r || c->width == 0 || c->height == 0)
		return leave(r);
	stream_ref(s);
	r = copy_submit_locked(ctx, s, *c, m, false);
	stream_put_locked(s);
	return leave(r);
}

CUresult set_call(const struct set *want, CUstream h, const struct copy_mode *m)
{
	struct context *ctx;
	struct stream *s;
	uint64_t seq;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	r = stream_get_locked(ctx, h, m->per_thread, &s);
	if (r)
		return leave(r);
	if (want->width == 0 || want->height == 0)
		return leave(CUDA_SUCCESS);
	size_t row, n;
	if (__builtin_mul_overflow(want->width, want->size, &row) || !copy_extent(1, 0, want->height, want->pitch, row, &n))
		return leave(CUDA_ERROR_INVALID_VALUE);
	bool there = memory_to_locked(want->dst, n) ||
		     (s->capture && graph_memory_find_locked(want->dst));
	if (!there || want->dst % want->size ||
	    (want->height > 1 && want->pitch < row))
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (!m->async) {
		r = s->legacy ? capture_legacy_locked(ctx) : capture_forbid_locked(s);
		if (r)
			return leave(r);
	}
	bool host = !memory_is_device(want->dst), captured = s->capture != NULL;
	stream_ref(s);
	r = submit_locked(&(struct submit){
		.name = m->name, .class = SIM_WORK, .stream = s,
		.step = { .kind = STEP_SET, .set = *want } }, &seq);
	/* A set of device memory does not wait; one of host memory does. */
	if (!r && !m->async && host && !captured) {
		wait_point_locked(s, seq);
		r = ctx->error;
	}
	stream_put_locked(s);
	return leave(r);
}
