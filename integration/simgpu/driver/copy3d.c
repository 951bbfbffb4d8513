/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of rectangles and boxes, from and to memory and arrays. */
#include "array.h"
#include "copy.h"

#define MAX_PITCH 2147483647u /* CU_DEVICE_ATTRIBUTE_MAX_PITCH */

/* One side of a box. */
struct side {
	CUmemorytype type;
	uint64_t host, device;
	CUarray array;
	size_t x, y, z, lod, pitch, height;
};

struct place {
	uint64_t at;
	size_t pitch, slice;
};

static CUresult in_array(const struct side *s, const CUDA_MEMCPY3D *p, struct place *out)
{
	const struct array *a = array_get_locked(s->array);

	if (!a)
		return s->array ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE;
	if (s->lod || s->x % a->element || p->WidthInBytes % a->element || s->x > a->pitch || p->WidthInBytes > a->pitch - s->x ||
	    s->y > a->height || p->Height > a->height - s->y || s->z > a->depth || p->Depth > a->depth - s->z)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (struct place){ a->at + (s->z * a->height + s->y) * a->pitch + s->x, a->pitch, a->pitch * a->height };
	return CUDA_SUCCESS;
}

/* A pitch or height of 0 is what fits, where there is no second row or plane. */
static CUresult in_memory(const struct side *s, const CUDA_MEMCPY3D *p, uint64_t base, struct place *out)
{
	size_t row, rows, slice, before;

	if (__builtin_add_overflow(s->x, p->WidthInBytes, &row) || __builtin_add_overflow(s->y, p->Height, &rows))
		return CUDA_ERROR_INVALID_VALUE;
	size_t pitch = s->pitch ? s->pitch : row;
	size_t height = s->height ? s->height : rows;

	if (!base || s->lod || pitch > MAX_PITCH || (p->Height > 1 && pitch < row) || (p->Depth > 1 && height < rows) ||
	    __builtin_mul_overflow(pitch, height, &slice) || s->z == SIZE_MAX || s->y == SIZE_MAX ||
	    !copy_extent(s->z + 1, slice, s->y + 1, pitch, s->x, &before) || base + before < base)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (struct place){ base + before, pitch, slice };
	return CUDA_SUCCESS;
}

static CUresult find(const struct side *s, const CUDA_MEMCPY3D *p, struct place *out)
{
	CUresult r;

	switch (s->type) {
	case CU_MEMORYTYPE_HOST:
		return in_memory(s, p, s->host, out);
	case CU_MEMORYTYPE_DEVICE:
		r = in_memory(s, p, s->device, out);
		return !r && memory_is_pageable_locked(out->at) ? CUDA_ERROR_INVALID_VALUE : r;
	case CU_MEMORYTYPE_UNIFIED:
		return in_memory(s, p, s->device, out);
	case CU_MEMORYTYPE_ARRAY:
		return in_array(s, p, out);
	}
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult copy_of_box_locked(const CUDA_MEMCPY3D *p, struct copy *out)
{
	struct side from = { p->srcMemoryType, (uint64_t)(uintptr_t)p->srcHost, p->srcDevice, p->srcArray,
			     p->srcXInBytes, p->srcY, p->srcZ, p->srcLOD, p->srcPitch, p->srcHeight };
	struct side to = { p->dstMemoryType, (uint64_t)(uintptr_t)p->dstHost, p->dstDevice, p->dstArray,
			   p->dstXInBytes, p->dstY, p->dstZ, p->dstLOD, p->dstPitch, p->dstHeight };
	struct place src, dst;
	CUresult r;

	*out = (struct copy){ 0 };
	if (p->WidthInBytes == 0 || p->Height == 0 || p->Depth == 0)
		return CUDA_SUCCESS;
	r = find(&from, p, &src);
	if (!r)
		r = find(&to, p, &dst);
	if (!r)
		*out = (struct copy){ .dst = dst.at, .src = src.at, .dst_pitch = dst.pitch, .src_pitch = src.pitch,
				      .dst_slice = dst.slice, .src_slice = src.slice,
				      .width = p->WidthInBytes, .height = p->Height, .depth = p->Depth };
	return r;
}

static CUresult box(const CUDA_MEMCPY3D *p, CUstream h, const struct copy_mode *m)
{
	struct context *ctx;
	struct stream *s;
	struct copy c;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	r = stream_get_locked(ctx, h, m->per_thread, &s);
	if (!r)
		r = copy_of_box_locked(p, &c);
	if (r || c.width == 0)
		return leave(r);
	stream_ref(s);
	r = copy_submit_locked(ctx, s, c, m, false);
	stream_put_locked(s);
	return leave(r);
}

/* The same box in the structs of the four kinds of calls, which differ in the width of their fields. */
#define RECTANGLE(p)                                                                                                   \
	.srcXInBytes = (p)->srcXInBytes, .srcY = (p)->srcY, .srcMemoryType = (p)->srcMemoryType, .srcHost = (p)->srcHost, \
	.srcDevice = (p)->srcDevice, .srcArray = (p)->srcArray, .srcPitch = (p)->srcPitch,                             \
	.dstXInBytes = (p)->dstXInBytes, .dstY = (p)->dstY, .dstMemoryType = (p)->dstMemoryType, .dstHost = (p)->dstHost, \
	.dstDevice = (p)->dstDevice, .dstArray = (p)->dstArray, .dstPitch = (p)->dstPitch,                             \
	.WidthInBytes = (p)->WidthInBytes, .Height = (p)->Height
#define BOX_OF_2D(p) ((CUDA_MEMCPY3D){ RECTANGLE(p), .Depth = 1 })
#define BOX_OF_3D(p)                                                                                                   \
	((CUDA_MEMCPY3D){ RECTANGLE(p), .srcZ = (p)->srcZ, .srcLOD = (p)->srcLOD, .srcHeight = (p)->srcHeight,         \
			  .dstZ = (p)->dstZ, .dstLOD = (p)->dstLOD, .dstHeight = (p)->dstHeight, .Depth = (p)->Depth })

static CUresult copy2d(const CUDA_MEMCPY2D *p, CUstream h, const struct copy_mode *m)
{
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	return box(&BOX_OF_2D(p), h, m);
}

static CUresult copy3d(const CUDA_MEMCPY3D *p, CUstream h, const struct copy_mode *m)
{
	return p && !p->reserved0 && !p->reserved1 ? box(p, h, m) : CUDA_ERROR_INVALID_VALUE;
}

/* The contexts say where the memory is; here an address says that too. */
static CUresult peer3d(const CUDA_MEMCPY3D_PEER *p, CUstream h, const struct copy_mode *m)
{
	CUresult r = enter();

	if (r)
		return r;
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	lock();
	bool ok = (p->srcMemoryType == CU_MEMORYTYPE_HOST || context_get_locked(p->srcContext)) &&
		  (p->dstMemoryType == CU_MEMORYTYPE_HOST || context_get_locked(p->dstContext));
	unlock();
	if (!ok)
		return CUDA_ERROR_INVALID_CONTEXT;
	return box(&BOX_OF_3D(p), h, m);
}

static CUresult copy2d_v1(const CUDA_MEMCPY2D_v1 *p, CUstream h, const struct copy_mode *m)
{
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	return box(&BOX_OF_2D(p), h, m);
}

static CUresult copy3d_v1(const CUDA_MEMCPY3D_v1 *p, CUstream h, const struct copy_mode *m)
{
	if (!p || p->reserved0 || p->reserved1)
		return CUDA_ERROR_INVALID_VALUE;
	return box(&BOX_OF_3D(p), h, m);
}

/* EXPORTED: name with its suffix; NAME: as logged; DO: which of the above */
#define BOX_SYNC(EXPORTED, NAME, TYPE, DO, PER_THREAD)                                                                 \
	EXPORT CUresult EXPORTED(const TYPE *p)                                                                        \
	{                                                                                                              \
		return DO(p, NULL, &(struct copy_mode){ .name = #NAME, .async = false, .per_thread = PER_THREAD });    \
	}

#define BOX_ASYNC(EXPORTED, NAME, TYPE, DO, PER_THREAD)                                                                \
	EXPORT CUresult EXPORTED(const TYPE *p, CUstream h)                                                            \
	{                                                                                                              \
		return DO(p, h, &(struct copy_mode){ .name = #NAME, .async = true, .per_thread = PER_THREAD });        \
	}

BOX_SYNC(cuMemcpy2D, cuMemcpy2D, CUDA_MEMCPY2D_v1, copy2d_v1, false)
BOX_SYNC(cuMemcpy2D_v2, cuMemcpy2D, CUDA_MEMCPY2D, copy2d, false)
BOX_SYNC(cuMemcpy2D_v2_ptds, cuMemcpy2D, CUDA_MEMCPY2D, copy2d, true)
BOX_SYNC(cuMemcpy2DUnaligned, cuMemcpy2DUnaligned, CUDA_MEMCPY2D_v1, copy2d_v1, false)
BOX_SYNC(cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned, CUDA_MEMCPY2D, copy2d, false)
BOX_SYNC(cuMemcpy2DUnaligned_v2_ptds, cuMemcpy2DUnaligned, CUDA_MEMCPY2D, copy2d, true)
BOX_ASYNC(cuMemcpy2DAsync, cuMemcpy2DAsync, CUDA_MEMCPY2D_v1, copy2d_v1, false)
BOX_ASYNC(cuMemcpy2DAsync_v2, cuMemcpy2DAsync, CUDA_MEMCPY2D, copy2d, false)
BOX_ASYNC(cuMemcpy2DAsync_v2_ptsz, cuMemcpy2DAsync, CUDA_MEMCPY2D, copy2d, true)
BOX_SYNC(cuMemcpy3D, cuMemcpy3D, CUDA_MEMCPY3D_v1, copy3d_v1, false)
BOX_SYNC(cuMemcpy3D_v2, cuMemcpy3D, CUDA_MEMCPY3D, copy3d, false)
BOX_SYNC(cuMemcpy3D_v2_ptds, cuMemcpy3D, CUDA_MEMCPY3D, copy3d, true)
BOX_ASYNC(cuMemcpy3DAsync, cuMemcpy3DAsync, CUDA_MEMCPY3D_v1, copy3d_v1, false)
BOX_ASYNC(cuMemcpy3DAsync_v2, cuMemcpy3DAsync, CUDA_MEMCPY3D, copy3d, false)
BOX_ASYNC(cuMemcpy3DAsync_v2_ptsz, cuMemcpy3DAsync, CUDA_MEMCPY3D, copy3d, true)
BOX_SYNC(cuMemcpy3DPeer, cuMemcpy3DPeer, CUDA_MEMCPY3D_PEER, peer3d, false)
BOX_SYNC(cuMemcpy3DPeer_ptds, cuMemcpy3DPeer, CUDA_MEMCPY3D_PEER, peer3d, true)
BOX_ASYNC(cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync, CUDA_MEMCPY3D_PEER, peer3d, false)
BOX_ASYNC(cuMemcpy3DPeerAsync_ptsz, cuMemcpy3DPeerAsync, CUDA_MEMCPY3D_PEER, peer3d, true)
