/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays. Their layout is nobody's affair, so here it is rows without gaps. */
#include <stdlib.h>

#include "array.h"

#define KNOWN_FLAGS                                                                                                    \
	(CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_SURFACE_LDST | CUDA_ARRAY3D_CUBEMAP | CUDA_ARRAY3D_TEXTURE_GATHER |        \
	 CUDA_ARRAY3D_DEPTH_TEXTURE | CUDA_ARRAY3D_COLOR_ATTACHMENT | CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING | \
	 CUDA_ARRAY3D_VIDEO_ENCODE_DECODE)
/* Of a mapping that is made later nothing is simulated, nor of the video and raster formats. */
#define REFUSED_FLAGS (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING | CUDA_ARRAY3D_VIDEO_ENCODE_DECODE)
#define MAX_1D 131072u
#define MAX_2D 131072u
#define MAX_2D_HEIGHT 65536u
#define MAX_3D 16384u
#define MAX_LAYERS 2048u

uint32_t array_element(CUarray_format format, unsigned channels)
{
	uint32_t bytes;

	switch (format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8:
		bytes = 1;
		break;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF:
		bytes = 2;
		break;
	case CU_AD_FORMAT_UNSIGNED_INT32:
	case CU_AD_FORMAT_SIGNED_INT32:
	case CU_AD_FORMAT_FLOAT:
		bytes = 4;
		break;
	default:
		return 0;
	}
	return channels == 1 || channels == 2 || channels == 4 ? bytes * channels : 0;
}

static bool dimensions_ok(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	bool layered = d->Flags & CUDA_ARRAY3D_LAYERED, cube = d->Flags & CUDA_ARRAY3D_CUBEMAP;

	if (!d->Width)
		return false;
	if (cube && (d->Width != d->Height || (layered ? d->Depth == 0 || d->Depth % 6 : d->Depth != 6)))
		return false;
	if (layered)
		return d->Depth && d->Depth <= MAX_LAYERS && d->Width <= 32768 && d->Height <= 32768;
	if (d->Flags & CUDA_ARRAY3D_TEXTURE_GATHER && (!d->Height || d->Depth))
		return false;
	if (d->Depth)
		return d->Height && d->Width <= MAX_3D && d->Height <= MAX_3D && d->Depth <= MAX_3D;
	return d->Height ? d->Width <= MAX_2D && d->Height <= MAX_2D_HEIGHT : d->Width <= MAX_1D;
}

CUresult array_check(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	if (!array_element(d->Format, d->NumChannels) || d->Flags & ~(unsigned)KNOWN_FLAGS || !dimensions_ok(d))
		return CUDA_ERROR_INVALID_VALUE;
	return d->Flags & REFUSED_FLAGS ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

CUresult array_new_locked(struct context *ctx, const CUDA_ARRAY3D_DESCRIPTOR *d, struct array **out)
{
	struct array *a = calloc(1, sizeof(*a));

	if (!a)
		return CUDA_ERROR_OUT_OF_MEMORY;
	a->ctx = ctx;
	a->desc = *d;
	a->element = array_element(d->Format, d->NumChannels);
	a->width = d->Width;
	a->height = d->Height ? d->Height : 1;
	a->depth = d->Depth ? d->Depth : 1;
	a->pitch = a->width * a->element;
	a->size = a->pitch * a->height * a->depth;
	CUresult r = memory_alloc_locked(ctx, a->size, MEMORY_DEVICE, 0, &a->at);
	if (r) {
		free(a);
		return r;
	}
	handle_add_locked(a, KIND_ARRAY);
	*out = a;
	return CUDA_SUCCESS;
}

/* A context that went has taken the memory along. */
void array_free_locked(struct array *a)
{
	if (!a->ctx->destroyed)
		memory_free_locked(a->at);
	handle_remove_locked(a);
	free(a);
}

struct array *array_get_locked(CUarray h)
{
	struct array *a = handle_get_locked(h, KIND_ARRAY);

	return a && !a->ctx->destroyed ? a : NULL;
}

CUresult array_enter(struct context **ctx)
{
	CUresult r = enter_context(ctx);

	if (r)
		return r;
	r = capture_unsafe_locked();
	return r ? leave(r) : CUDA_SUCCESS;
}

static CUresult create(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d, const char *name)
{
	uint64_t from = clock_ns();
	struct context *ctx;
	struct array *a;
	CUresult r = array_enter(&ctx);

	if (r)
		return r;
	r = out && d ? array_check(d) : CUDA_ERROR_INVALID_VALUE;
	if (!r)
		r = array_new_locked(ctx, d, &a);
	if (!r)
		*out = (CUarray)a;
	log_setup(name, NULL, ctx, from);
	return leave(r);
}

EXPORT CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	return create(out, d, "cuArray3DCreate");
}

EXPORT CUresult cuArray3DCreate(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR_v1 *d)
{
	if (!d)
		return CUDA_ERROR_INVALID_VALUE;
	return create(out, &(CUDA_ARRAY3D_DESCRIPTOR){ .Width = d->Width, .Height = d->Height, .Depth = d->Depth,
						       .Format = d->Format, .NumChannels = d->NumChannels, .Flags = d->Flags },
		      "cuArray3DCreate");
}

EXPORT CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *d)
{
	if (!d)
		return CUDA_ERROR_INVALID_VALUE;
	return create(out, &(CUDA_ARRAY3D_DESCRIPTOR){ .Width = d->Width, .Height = d->Height, .Format = d->Format,
						       .NumChannels = d->NumChannels },
		      "cuArrayCreate");
}

EXPORT CUresult cuArrayCreate(CUarray *out, const CUDA_ARRAY_DESCRIPTOR_v1 *d)
{
	if (!d)
		return CUDA_ERROR_INVALID_VALUE;
	return create(out, &(CUDA_ARRAY3D_DESCRIPTOR){ .Width = d->Width, .Height = d->Height, .Format = d->Format,
						       .NumChannels = d->NumChannels },
		      "cuArrayCreate");
}

EXPORT CUresult cuArrayDestroy(CUarray h)
{
	uint64_t from = clock_ns();
	struct context *ctx;
	CUresult r = array_enter(&ctx);

	if (r)
		return r;
	struct array *a = handle_get_locked(h, KIND_ARRAY);
	if (!a)
		return leave(CUDA_ERROR_INVALID_HANDLE);
	if (a->level_of)
		return leave(CUDA_ERROR_INVALID_VALUE);
	/* Work may be on its way to it, and another thread may destroy it while we wait. */
	context_sync_locked(a->ctx);
	a = handle_get_locked(h, KIND_ARRAY);
	if (a)
		array_free_locked(a);
	log_setup("cuArrayDestroy", NULL, ctx, from);
	return leave(a ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

static CUresult describe(CUarray h, CUDA_ARRAY3D_DESCRIPTOR *out)
{
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	const struct array *a = array_get_locked(h);
	if (!a)
		return leave(CUDA_ERROR_INVALID_HANDLE);
	*out = a->desc;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuArray3DGetDescriptor_v2(CUDA_ARRAY3D_DESCRIPTOR *out, CUarray h)
{
	return out ? describe(h, out) : CUDA_ERROR_INVALID_VALUE;
}

#define NARROW(p, d)                                                                                                   \
	do {                                                                                                           \
		(p)->Width = (unsigned)(d).Width;                                                                      \
		(p)->Height = (unsigned)(d).Height;                                                                    \
		(p)->Format = (d).Format;                                                                              \
		(p)->NumChannels = (d).NumChannels;                                                                    \
	} while (0)

EXPORT CUresult cuArray3DGetDescriptor(CUDA_ARRAY3D_DESCRIPTOR_v1 *out, CUarray h)
{
	CUDA_ARRAY3D_DESCRIPTOR d;
	CUresult r = out ? describe(h, &d) : CUDA_ERROR_INVALID_VALUE;

	if (r)
		return r;
	NARROW(out, d);
	out->Depth = (unsigned)d.Depth;
	out->Flags = d.Flags;
	return CUDA_SUCCESS;
}

/* An array with a depth has no description of two dimensions. */
EXPORT CUresult cuArrayGetDescriptor_v2(CUDA_ARRAY_DESCRIPTOR *out, CUarray h)
{
	CUDA_ARRAY3D_DESCRIPTOR d;
	CUresult r = out ? describe(h, &d) : CUDA_ERROR_INVALID_VALUE;

	if (r)
		return r;
	*out = (CUDA_ARRAY_DESCRIPTOR){ d.Width, d.Height, d.Format, d.NumChannels };
	return CUDA_SUCCESS;
}

EXPORT CUresult cuArrayGetDescriptor(CUDA_ARRAY_DESCRIPTOR_v1 *out, CUarray h)
{
	CUDA_ARRAY3D_DESCRIPTOR d;
	CUresult r = out ? describe(h, &d) : CUDA_ERROR_INVALID_VALUE;

	if (r)
		return r;
	NARROW(out, d);
	return CUDA_SUCCESS;
}

/* Only arrays of several planes have planes. */
EXPORT CUresult cuArrayGetPlane(CUarray *out, CUarray h, unsigned int plane)
{
	CUDA_ARRAY3D_DESCRIPTOR d;
	CUresult r = out ? describe(h, &d) : CUDA_ERROR_INVALID_VALUE;

	(void)plane;
	return r ? r : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuArrayGetSparseProperties(CUDA_ARRAY_SPARSE_PROPERTIES *out, CUarray h)
{
	CUDA_ARRAY3D_DESCRIPTOR d;
	CUresult r = out ? describe(h, &d) : CUDA_ERROR_INVALID_VALUE;

	return r ? r : CUDA_ERROR_INVALID_VALUE; /* it is not sparse */
}

/*
 * The documentation gives them of arrays with a deferred mapping alone; those
 * are not simulated, so this answers for the others.
 */
EXPORT CUresult cuArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUarray h, CUdevice dev)
{
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	const struct array *a = array_get_locked(h);
	if (!device_ok(dev))
		return leave(CUDA_ERROR_INVALID_DEVICE);
	if (!out || !a)
		return leave(out ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE);
	*out = (CUDA_ARRAY_MEMORY_REQUIREMENTS){ .size = (a->size + ARRAY_ALIGN - 1) / ARRAY_ALIGN * ARRAY_ALIGN, .alignment = ARRAY_ALIGN };
	return leave(CUDA_SUCCESS);
}
