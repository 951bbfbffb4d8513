/* SPDX-License-Identifier: Apache-2.0 */
/* Mipmapped arrays: an array for each level. */
#include <stdlib.h>

#include "array.h"

struct mipmap {
	struct handle h;
	struct context *ctx;
	unsigned levels;
	struct array *level[32];
};

static unsigned levels_of(const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	size_t most = d->Width > d->Height ? d->Width : d->Height;
	unsigned n = 1;

	if (!(d->Flags & CUDA_ARRAY3D_LAYERED) && !(d->Flags & CUDA_ARRAY3D_CUBEMAP) && d->Depth > most)
		most = d->Depth;
	while (most >>= 1)
		n++;
	return n;
}

static size_t half(size_t n)
{
	return n > 1 ? n / 2 : n;
}

static void mipmap_free_locked(struct mipmap *m)
{
	for (unsigned i = 0; i < m->levels; i++)
		array_free_locked(m->level[i]);
	handle_remove_locked(m);
	free(m);
}

static CUresult mipmap_new_locked(struct context *ctx, CUDA_ARRAY3D_DESCRIPTOR d, unsigned levels, struct mipmap **out)
{
	struct mipmap *m = calloc(1, sizeof(*m));
	CUresult r = m ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;

	if (r)
		return r;
	m->ctx = ctx;
	handle_add_locked(m, KIND_MIPMAP);
	for (unsigned i = 0; i < levels && !r; i++) {
		r = array_new_locked(ctx, &d, &m->level[i]);
		if (r)
			break;
		m->level[i]->level_of = m;
		m->levels++;
		d.Width = half(d.Width);
		d.Height = half(d.Height);
		if (!(d.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP)))
			d.Depth = half(d.Depth);
	}
	if (r)
		mipmap_free_locked(m);
	else
		*out = m;
	return r;
}

EXPORT CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels)
{
	uint64_t from = clock_ns();
	struct context *ctx;
	struct mipmap *m;
	CUresult r = array_enter(&ctx);

	if (r)
		return r;
	r = out && d && levels ? array_check(d) : CUDA_ERROR_INVALID_VALUE;
	if (!r) {
		/* "clamped to the range [1, 1 + floor(log2(max(width, height, depth)))]" */
		unsigned most = levels_of(d);

		r = mipmap_new_locked(ctx, *d, levels < most ? levels : most, &m);
	}
	if (!r)
		*out = (CUmipmappedArray)m;
	log_setup("cuMipmappedArrayCreate", NULL, ctx, from);
	return leave(r);
}

EXPORT CUresult cuMipmappedArrayDestroy(CUmipmappedArray h)
{
	uint64_t from = clock_ns();
	struct context *ctx;
	CUresult r = array_enter(&ctx);

	if (r)
		return r;
	struct mipmap *m = handle_get_locked(h, KIND_MIPMAP);
	if (!m)
		return leave(CUDA_ERROR_INVALID_HANDLE);
	context_sync_locked(m->ctx);
	m = handle_get_locked(h, KIND_MIPMAP);
	if (m)
		mipmap_free_locked(m);
	log_setup("cuMipmappedArrayDestroy", NULL, ctx, from);
	return leave(m ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

EXPORT CUresult cuMipmappedArrayGetLevel(CUarray *out, CUmipmappedArray h, unsigned int level)
{
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	const struct mipmap *m = handle_get_locked(h, KIND_MIPMAP);
	if (!m)
		return leave(CUDA_ERROR_INVALID_HANDLE);
	if (!out || level >= m->levels)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*out = (CUarray)m->level[level];
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMipmappedArrayGetMemoryRequirements(CUDA_ARRAY_MEMORY_REQUIREMENTS *out, CUmipmappedArray h, CUdevice dev)
{
	struct context *ctx;
	CUresult r = enter_context(&ctx);
	size_t size = 0;

	if (r)
		return r;
	const struct mipmap *m = handle_get_locked(h, KIND_MIPMAP);
	if (!device_ok(dev))
		return leave(CUDA_ERROR_INVALID_DEVICE);
	if (!out || !m)
		return leave(out ? CUDA_ERROR_INVALID_HANDLE : CUDA_ERROR_INVALID_VALUE);
	for (unsigned i = 0; i < m->levels; i++)
		size += (m->level[i]->size + ARRAY_ALIGN - 1) / ARRAY_ALIGN * ARRAY_ALIGN;
	*out = (CUDA_ARRAY_MEMORY_REQUIREMENTS){ .size = size, .alignment = ARRAY_ALIGN };
	return leave(CUDA_SUCCESS);
}
