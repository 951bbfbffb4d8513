/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Batches of copies, and single ones with attributes. Each copy is a record of
 * its own. A batch that is wrong anywhere copies nothing.
 */
#include <stdint.h>
#include <stdlib.h>

#include "array.h"
#include "copy.h"

#define NO_COPY SIZE_MAX /* failIdx: the error is not one of a copy */

struct part {
	struct copy copy;
	bool source_now;
};

static bool attributes_ok(CUmemcpySrcAccessOrder order, unsigned flags)
{
	return order >= CU_MEMCPY_SRC_ACCESS_ORDER_STREAM && order <= CU_MEMCPY_SRC_ACCESS_ORDER_ANY &&
	       flags <= CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE;
}

/* Enters: a batch takes neither the legacy stream nor one that captures. */
static CUresult enter_batch(CUstream h, bool per_thread, struct context **ctx, struct stream **s)
{
	CUresult r = enter_context(ctx);

	if (r)
		return r;
	r = stream_get_locked(*ctx, h, per_thread, s);
	if (!r && (*s)->legacy)
		r = CUDA_ERROR_INVALID_VALUE;
	if (!r)
		r = capture_forbid_locked(*s);
	if (r)
		return leave(r);
	stream_ref(*s);
	return CUDA_SUCCESS;
}

/* Submits them all and lets the mutex go for good. */
static CUresult submit_parts(struct context *ctx, struct stream *s, struct part *p, size_t n, const struct copy_mode *m)
{
	CUresult r = CUDA_SUCCESS;

	for (size_t i = 0; i < n && !r; i++)
		if (p[i].copy.width)
			r = copy_submit_locked(ctx, s, p[i].copy, m, p[i].source_now);
	stream_put_locked(s);
	free(p);
	return leave(r);
}

static CUresult refuse(struct stream *s, struct part *p, CUresult r)
{
	stream_put_locked(s);
	free(p);
	return leave(r);
}

struct batch {
	const CUdeviceptr *dsts, *srcs;
	const size_t *sizes;
	size_t n;
	const CUmemcpyAttributes *attrs;
	const size_t *attrs_at;
	size_t n_attrs;
};

static bool shape_ok(const struct batch *b)
{
	if (!b->n || !b->dsts || !b->srcs || !b->sizes || !b->n_attrs || b->n_attrs > b->n || !b->attrs || !b->attrs_at || b->attrs_at[0])
		return false;
	for (size_t i = 1; i < b->n_attrs; i++)
		if (b->attrs_at[i] <= b->attrs_at[i - 1] || b->attrs_at[i] >= b->n)
			return false;
	return true;
}

static CUresult linear(const struct batch *b, size_t *fail, CUstream h, bool per_thread, const char *name)
{
	struct context *ctx;
	struct stream *s;
	size_t attr = 0;
	CUresult r;

	if (fail)
		*fail = NO_COPY;
	if (!shape_ok(b))
		return CUDA_ERROR_INVALID_VALUE;
	r = enter_batch(h, per_thread, &ctx, &s);
	if (r)
		return r;
	struct part *p = calloc(b->n, sizeof(*p));
	if (!p)
		return refuse(s, NULL, CUDA_ERROR_OUT_OF_MEMORY);
	for (size_t i = 0; i < b->n; i++) {
		while (attr + 1 < b->n_attrs && b->attrs_at[attr + 1] <= i)
			attr++;
		size_t n = b->sizes[i];
		p[i].copy = (struct copy){ .dst = b->dsts[i], .src = b->srcs[i], .dst_pitch = n, .src_pitch = n, .width = n, .height = 1 };
		p[i].source_now = b->attrs[attr].srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
		if (!attributes_ok(b->attrs[attr].srcAccessOrder, b->attrs[attr].flags) || !n || !copy_ok_locked(&p[i].copy)) {
			if (fail)
				*fail = i;
			return refuse(s, p, CUDA_ERROR_INVALID_VALUE);
		}
	}
	return submit_parts(ctx, s, p, b->n, &(struct copy_mode){ .name = name, .async = true, .per_thread = per_thread });
}

#define LINEAR_BATCH(SUFFIX, PER_THREAD)                                                                               \
	EXPORT CUresult cuMemcpyBatchAsync##SUFFIX(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t n,      \
						   CUmemcpyAttributes *attrs, size_t *attrs_at, size_t n_attrs, size_t *fail, \
						   CUstream h)                                                         \
	{                                                                                                              \
		return linear(&(struct batch){ dsts, srcs, sizes, n, attrs, attrs_at, n_attrs }, fail, h, PER_THREAD,  \
			      "cuMemcpyBatchAsync");                                                                   \
	}

#define LINEAR_BATCH_V2(SUFFIX, PER_THREAD)                                                                            \
	EXPORT CUresult cuMemcpyBatchAsync##SUFFIX(CUdeviceptr *dsts, CUdeviceptr *srcs, size_t *sizes, size_t n,      \
						   CUmemcpyAttributes *attrs, size_t *attrs_at, size_t n_attrs, CUstream h) \
	{                                                                                                              \
		return linear(&(struct batch){ dsts, srcs, sizes, n, attrs, attrs_at, n_attrs }, NULL, h, PER_THREAD,  \
			      "cuMemcpyBatchAsync");                                                                   \
	}

LINEAR_BATCH(, false)
LINEAR_BATCH(_ptsz, true)
LINEAR_BATCH_V2(_v2, false)
LINEAR_BATCH_V2(_v2_ptsz, true)

EXPORT CUresult cuMemcpyWithAttributesAsync(CUdeviceptr dst, CUdeviceptr src, size_t n, CUmemcpyAttributes *attr, CUstream h)
{
	return linear(&(struct batch){ &dst, &src, &n, 1, attr, &(size_t){ 0 }, 1 }, NULL, h, false, "cuMemcpyWithAttributesAsync");
}

EXPORT CUresult cuMemcpyWithAttributesAsync_ptsz(CUdeviceptr dst, CUdeviceptr src, size_t n, CUmemcpyAttributes *attr, CUstream h)
{
	return linear(&(struct batch){ &dst, &src, &n, 1, attr, &(size_t){ 0 }, 1 }, NULL, h, true, "cuMemcpyWithAttributesAsync");
}

/* A box: extents and offsets count elements if one side is an array, else bytes. */
static CUresult operand(const CUmemcpy3DOperand *o, uint32_t element, CUmemorytype *type, CUdeviceptr *device, CUarray *array,
			size_t at[3], size_t *pitch, size_t *height)
{
	switch (o->type) {
	case CU_MEMCPY_OPERAND_TYPE_POINTER:
		*type = CU_MEMORYTYPE_UNIFIED;
		*device = o->op.ptr.ptr;
		if (__builtin_mul_overflow(o->op.ptr.rowLength, element, pitch))
			return CUDA_ERROR_INVALID_VALUE;
		*height = o->op.ptr.layerHeight;
		return CUDA_SUCCESS;
	case CU_MEMCPY_OPERAND_TYPE_ARRAY:
		*type = CU_MEMORYTYPE_ARRAY;
		*array = o->op.array.array;
		if (__builtin_mul_overflow(o->op.array.offset.x, element, &at[0]))
			return CUDA_ERROR_INVALID_VALUE;
		at[1] = o->op.array.offset.y;
		at[2] = o->op.array.offset.z;
		return CUDA_SUCCESS;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static uint32_t element_of_locked(const CUmemcpy3DOperand *o)
{
	const struct array *a = o->type == CU_MEMCPY_OPERAND_TYPE_ARRAY ? array_get_locked(o->op.array.array) : NULL;

	return a ? a->element : 0;
}

static CUresult box_locked(const CUDA_MEMCPY3D_BATCH_OP *o, struct part *out)
{
	uint32_t from = element_of_locked(&o->src), to = element_of_locked(&o->dst);
	uint32_t element = from ? from : to ? to : 1;
	CUDA_MEMCPY3D p = { .Height = o->extent.height, .Depth = o->extent.depth };
	size_t src[3] = { 0 }, dst[3] = { 0 };
	CUresult r;

	if (__builtin_mul_overflow(o->extent.width, element, &p.WidthInBytes) ||
	    !attributes_ok(o->srcAccessOrder, o->flags) || (from && to && from != to) || !p.WidthInBytes || !p.Height || !p.Depth)
		return CUDA_ERROR_INVALID_VALUE;
	r = operand(&o->src, element, &p.srcMemoryType, &p.srcDevice, &p.srcArray, src, &p.srcPitch, &p.srcHeight);
	if (!r)
		r = operand(&o->dst, element, &p.dstMemoryType, &p.dstDevice, &p.dstArray, dst, &p.dstPitch, &p.dstHeight);
	if (r)
		return r;
	p.srcXInBytes = src[0];
	p.srcY = src[1];
	p.srcZ = src[2];
	p.dstXInBytes = dst[0];
	p.dstY = dst[1];
	p.dstZ = dst[2];
	out->source_now = o->srcAccessOrder == CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL;
	r = copy_of_box_locked(&p, &out->copy);
	return r || copy_ok_locked(&out->copy) ? r : CUDA_ERROR_INVALID_VALUE;
}

static CUresult boxes(size_t n, const CUDA_MEMCPY3D_BATCH_OP *ops, size_t *fail, unsigned long long flags, CUstream h, bool per_thread,
		      const char *name)
{
	struct context *ctx;
	struct stream *s;
	CUresult r;

	if (fail)
		*fail = NO_COPY;
	if (!n || !ops || flags)
		return CUDA_ERROR_INVALID_VALUE;
	r = enter_batch(h, per_thread, &ctx, &s);
	if (r)
		return r;
	struct part *p = calloc(n, sizeof(*p));
	if (!p)
		return refuse(s, NULL, CUDA_ERROR_OUT_OF_MEMORY);
	for (size_t i = 0; i < n; i++) {
		r = box_locked(&ops[i], &p[i]);
		if (r && fail)
			*fail = i;
		if (r)
			return refuse(s, p, r);
	}
	return submit_parts(ctx, s, p, n, &(struct copy_mode){ .name = name, .async = true, .per_thread = per_thread });
}

EXPORT CUresult cuMemcpy3DBatchAsync(size_t n, CUDA_MEMCPY3D_BATCH_OP *ops, size_t *fail, unsigned long long flags, CUstream h)
{
	return boxes(n, ops, fail, flags, h, false, "cuMemcpy3DBatchAsync");
}

EXPORT CUresult cuMemcpy3DBatchAsync_ptsz(size_t n, CUDA_MEMCPY3D_BATCH_OP *ops, size_t *fail, unsigned long long flags, CUstream h)
{
	return boxes(n, ops, fail, flags, h, true, "cuMemcpy3DBatchAsync");
}

EXPORT CUresult cuMemcpy3DBatchAsync_v2(size_t n, CUDA_MEMCPY3D_BATCH_OP *ops, unsigned long long flags, CUstream h)
{
	return boxes(n, ops, NULL, flags, h, false, "cuMemcpy3DBatchAsync");
}

EXPORT CUresult cuMemcpy3DBatchAsync_v2_ptsz(size_t n, CUDA_MEMCPY3D_BATCH_OP *ops, unsigned long long flags, CUstream h)
{
	return boxes(n, ops, NULL, flags, h, true, "cuMemcpy3DBatchAsync");
}

EXPORT CUresult cuMemcpy3DWithAttributesAsync(CUDA_MEMCPY3D_BATCH_OP *op, unsigned long long flags, CUstream h)
{
	return boxes(1, op, NULL, flags, h, false, "cuMemcpy3DWithAttributesAsync");
}

EXPORT CUresult cuMemcpy3DWithAttributesAsync_ptsz(CUDA_MEMCPY3D_BATCH_OP *op, unsigned long long flags, CUstream h)
{
	return boxes(1, op, NULL, flags, h, true, "cuMemcpy3DWithAttributesAsync");
}
