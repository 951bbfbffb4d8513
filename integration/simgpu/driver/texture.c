/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Texture and surface objects: made, described and destroyed. No simulated
 * kernel reads one.
 */
#include <stdlib.h>

#include "array.h"

#define LINEAR_ALIGN 512u /* CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT */
#define PITCH_ALIGN 32u   /* CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT */

/* A texture or a surface object; its number is its address. */
struct object {
	struct handle h;
	CUDA_RESOURCE_DESC resource;
	CUDA_TEXTURE_DESC texture;
	CUDA_RESOURCE_VIEW_DESC view;
	bool has_view;
};

static CUresult resource_ok_locked(const CUDA_RESOURCE_DESC *d, bool surface)
{
	uint32_t element;

	if (d->flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (surface && d->resType != CU_RESOURCE_TYPE_ARRAY)
		return CUDA_ERROR_INVALID_VALUE;
	switch (d->resType) {
	case CU_RESOURCE_TYPE_ARRAY: {
		const struct array *a = array_get_locked(d->res.array.hArray);

		if (!a)
			return CUDA_ERROR_INVALID_HANDLE;
		return surface && !(a->desc.Flags & CUDA_ARRAY3D_SURFACE_LDST) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
	}
	case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY:
		return handle_get_locked(d->res.mipmap.hMipmappedArray, KIND_MIPMAP) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
	case CU_RESOURCE_TYPE_LINEAR:
		element = array_element(d->res.linear.format, d->res.linear.numChannels);
		return element && d->res.linear.devPtr % LINEAR_ALIGN == 0 && d->res.linear.sizeInBytes &&
				       memory_at_locked(d->res.linear.devPtr, d->res.linear.sizeInBytes) ?
			       CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	case CU_RESOURCE_TYPE_PITCH2D:
		element = array_element(d->res.pitch2D.format, d->res.pitch2D.numChannels);
		return element && d->res.pitch2D.devPtr % LINEAR_ALIGN == 0 && d->res.pitch2D.pitchInBytes % PITCH_ALIGN == 0 &&
				       d->res.pitch2D.width && d->res.pitch2D.height &&
				       d->res.pitch2D.width * element <= d->res.pitch2D.pitchInBytes &&
				       memory_at_locked(d->res.pitch2D.devPtr, (d->res.pitch2D.height - 1) * d->res.pitch2D.pitchInBytes +
										       d->res.pitch2D.width * element) ?
			       CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult create(unsigned long long *out, const CUDA_RESOURCE_DESC *r, const CUDA_TEXTURE_DESC *t, const CUDA_RESOURCE_VIEW_DESC *v,
		       enum kind kind)
{
	struct context *ctx;
	CUresult e = enter_context(&ctx);

	if (e)
		return e;
	if (!out || !r || (kind == KIND_TEXTURE && !t))
		return leave(CUDA_ERROR_INVALID_VALUE);
	/* A view is of an array, mipmapped or not. */
	if (v && r->resType != CU_RESOURCE_TYPE_ARRAY && r->resType != CU_RESOURCE_TYPE_MIPMAPPED_ARRAY)
		return leave(CUDA_ERROR_INVALID_VALUE);
	e = resource_ok_locked(r, kind == KIND_SURFACE);
	if (e)
		return leave(e);
	struct object *o = calloc(1, sizeof(*o));
	if (!o)
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	o->resource = *r;
	if (t)
		o->texture = *t;
	if (v)
		o->view = *v;
	o->has_view = v != NULL;
	handle_add_locked(o, kind);
	*out = (uintptr_t)o;
	return leave(CUDA_SUCCESS);
}

static CUresult destroy(unsigned long long h, enum kind kind)
{
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	struct object *o = handle_get_locked((void *)(uintptr_t)h, kind);
	if (!o)
		return leave(CUDA_ERROR_INVALID_VALUE);
	handle_remove_locked(o);
	free(o);
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuTexObjectCreate(CUtexObject *out, const CUDA_RESOURCE_DESC *r, const CUDA_TEXTURE_DESC *t, const CUDA_RESOURCE_VIEW_DESC *v)
{
	return create(out, r, t, v, KIND_TEXTURE);
}

EXPORT CUresult cuTexObjectDestroy(CUtexObject h)
{
	return destroy(h, KIND_TEXTURE);
}

EXPORT CUresult cuSurfObjectCreate(CUsurfObject *out, const CUDA_RESOURCE_DESC *r)
{
	return create(out, r, NULL, NULL, KIND_SURFACE);
}

EXPORT CUresult cuSurfObjectDestroy(CUsurfObject h)
{
	return destroy(h, KIND_SURFACE);
}

#define GET(NAME, TYPE, KIND, FIELD)                                                                                   \
	EXPORT CUresult NAME(TYPE *out, unsigned long long h)                                                          \
	{                                                                                                              \
		struct context *ctx;                                                                                   \
		CUresult r = enter_context(&ctx);                                                                      \
                                                                                                                       \
		if (r)                                                                                                 \
			return r;                                                                                      \
		const struct object *o = handle_get_locked((void *)(uintptr_t)h, KIND);                                \
		if (!out || !o)                                                                                        \
			return leave(CUDA_ERROR_INVALID_VALUE);                                                        \
		*out = o->FIELD;                                                                                       \
		return leave(CUDA_SUCCESS);                                                                            \
	}

GET(cuTexObjectGetResourceDesc, CUDA_RESOURCE_DESC, KIND_TEXTURE, resource)
GET(cuTexObjectGetTextureDesc, CUDA_TEXTURE_DESC, KIND_TEXTURE, texture)
GET(cuSurfObjectGetResourceDesc, CUDA_RESOURCE_DESC, KIND_SURFACE, resource)

/* An error for one that was made without a view. */
EXPORT CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC *out, CUtexObject h)
{
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	const struct object *o = handle_get_locked((void *)(uintptr_t)h, KIND_TEXTURE);
	if (!out || !o || !o->has_view)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*out = o->view;
	return leave(CUDA_SUCCESS);
}
