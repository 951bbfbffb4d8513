/* SPDX-License-Identifier: Apache-2.0 */
/* Allocating and freeing in the order of a stream. */
#include "graph.h"
#include "pool.h"

static CUresult alloc(struct stream *s, struct pool *p, size_t size, const char *name, uint64_t *out)
{
	CUresult r;

	if (!p)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (p->imported)
		return CUDA_ERROR_INVALID_VALUE;
	r = pool_alloc_locked(p, size, s, out);
	if (r)
		return r;
	r = submit_locked(&(struct submit){ .name = name, .class = SIM_ORDER, .stream = s,
					    .step = { .kind = STEP_NOTHING } }, NULL);
	if (r)
		memory_free_locked(*out);
	return r;
}

static CUresult alloc_async(CUdeviceptr *out, size_t size, const CUmemoryPool *pool, CUstream h, const char *name, bool per_thread)
{
	struct context *ctx;
	struct stream *s;
	uint64_t address = 0;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	r = stream_get_locked(ctx, h, per_thread, &s);
	if (r)
		return leave(r);
	struct pool *p = pool ? handle_get_locked(*pool, KIND_POOL) : pool_current_locked(s->ctx->device);
	if (!out || (pool && !p))
		return leave(CUDA_ERROR_INVALID_VALUE);
	r = s->capture ? graph_capture_alloc_locked(s, size, &address) : alloc(s, p, size, name, &address);
	if (!r)
		*out = address;
	return leave(r);
}

EXPORT CUresult cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream h)
{
	return alloc_async(out, size, NULL, h, "cuMemAllocAsync", false);
}

EXPORT CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t size, CUstream h)
{
	return alloc_async(out, size, NULL, h, "cuMemAllocAsync", true);
}

EXPORT CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream h)
{
	return alloc_async(out, size, &pool, h, "cuMemAllocFromPoolAsync", false);
}

EXPORT CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream h)
{
	return alloc_async(out, size, &pool, h, "cuMemAllocFromPoolAsync", true);
}

static bool can_free(const struct allocation *a)
{
	return a->kind == MEMORY_DEVICE || a->kind == MEMORY_POOL || a->kind == MEMORY_MANAGED ||
	       (a->kind == MEMORY_IMPORTED && a->pool);
}

static CUresult free_async(CUdeviceptr p, CUstream h, bool per_thread)
{
	struct context *ctx;
	struct stream *s;
	uint64_t seq;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	r = stream_get_locked(ctx, h, per_thread, &s);
	if (r)
		return leave(r);
	if (s->capture)
		return leave(graph_capture_free_locked(s, p));
	struct allocation *a = memory_find_locked(p);
	if (!a || a->base != p || !can_free(a) || (a->graph && !graph_memory_release_locked(a->graph)))
		return leave(CUDA_ERROR_INVALID_VALUE);
	/* A pool knows the place in the stream by itself. */
	bool now = a->kind == MEMORY_POOL;
	uint64_t id = a->id;
	stream_ref(s);
	r = submit_locked(&(struct submit){
		.name = "cuMemFreeAsync", .class = SIM_ORDER, .stream = s,
		.step = { .kind = now ? STEP_NOTHING : STEP_FREE, .address = p } }, &seq);
	/* The mutex was away: another thread may have freed it meanwhile. */
	a = memory_find_locked(p);
	if (!r && now && a && a->id == id)
		pool_free_locked(a, s, seq);
	stream_put_locked(s);
	return leave(r);
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr p, CUstream h)
{
	return free_async(p, h, false);
}

EXPORT CUresult cuMemFreeAsync_ptsz(CUdeviceptr p, CUstream h)
{
	return free_async(p, h, true);
}
