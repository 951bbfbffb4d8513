/* SPDX-License-Identifier: Apache-2.0 */
/* Linear copies from and to one-dimensional arrays. */
#include "array.h"
#include "copy.h"

/* One side: an address, or an array and an offset in bytes. */
struct end {
	uint64_t at;
	CUarray array;
	size_t offset;
};

static CUresult resolve(const struct end *e, size_t n, bool is_array, uint64_t *at, uint32_t *element)
{
	*at = e->at;
	*element = 1;
	if (!is_array)
		return CUDA_SUCCESS;
	const struct array *a = array_get_locked(e->array);
	if (!a)
		return CUDA_ERROR_INVALID_HANDLE;
	if (a->desc.Height || a->desc.Depth || e->offset % a->element || n % a->element || e->offset > a->size ||
	    n > a->size - e->offset)
		return CUDA_ERROR_INVALID_VALUE;
	*at = a->at + e->offset;
	*element = a->element;
	return CUDA_SUCCESS;
}

static CUresult copy(const struct end *dst, bool to_array, const struct end *src, bool from_array, size_t n, CUstream h,
		     const struct copy_mode *m)
{
	struct copy c = { .dst_pitch = n, .src_pitch = n, .width = n, .height = 1 };
	uint32_t to, from;
	struct context *ctx;
	struct stream *s;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	r = stream_get_locked(ctx, h, m->per_thread, &s);
	if (!r)
		r = resolve(dst, n, to_array, &c.dst, &to);
	if (!r)
		r = resolve(src, n, from_array, &c.src, &from);
	/* Between arrays: the format may differ, the size of an element may not. */
	if (!r && to_array && from_array && to != from)
		r = CUDA_ERROR_INVALID_VALUE;
	if (r || n == 0)
		return leave(r);
	stream_ref(s);
	r = copy_submit_locked(ctx, s, c, m, false);
	stream_put_locked(s);
	return leave(r);
}

#define ADDRESS(p) (&(struct end){ .at = (uint64_t)(uintptr_t)(p) })
#define ARRAY(a, o) (&(struct end){ .array = (a), .offset = (o) })

/* SUFFIX: of the exported name; SIZE, POINTER: the types that differ between version 1 and 2; DEVICE: whether memory must be the driver's */
#define FROM_ARRAY(NAME, SUFFIX, TO, SIZE, PER_THREAD, DEVICE)                                                         \
	EXPORT CUresult NAME##SUFFIX(TO dst, CUarray a, SIZE offset, SIZE n)                                           \
	{                                                                                                              \
		return copy(ADDRESS(dst), false, ARRAY(a, offset), true, n, NULL,                                      \
			    &(struct copy_mode){ .name = #NAME, .async = false, .per_thread = PER_THREAD, .to_device = DEVICE }); \
	}

#define TO_ARRAY(NAME, SUFFIX, FROM, SIZE, PER_THREAD, DEVICE)                                                         \
	EXPORT CUresult NAME##SUFFIX(CUarray a, SIZE offset, FROM src, SIZE n)                                         \
	{                                                                                                              \
		return copy(ARRAY(a, offset), true, ADDRESS(src), false, n, NULL,                                      \
			    &(struct copy_mode){ .name = #NAME, .async = false, .per_thread = PER_THREAD, .from_device = DEVICE }); \
	}

#define BETWEEN_ARRAYS(SUFFIX, SIZE, PER_THREAD)                                                                       \
	EXPORT CUresult cuMemcpyAtoA##SUFFIX(CUarray to, SIZE to_offset, CUarray from, SIZE from_offset, SIZE n)       \
	{                                                                                                              \
		return copy(ARRAY(to, to_offset), true, ARRAY(from, from_offset), true, n, NULL,                       \
			    &(struct copy_mode){ .name = "cuMemcpyAtoA", .async = false, .per_thread = PER_THREAD });  \
	}

#define FROM_ARRAY_ASYNC(SUFFIX, SIZE, PER_THREAD)                                                                     \
	EXPORT CUresult cuMemcpyAtoHAsync##SUFFIX(void *dst, CUarray a, SIZE offset, SIZE n, CUstream h)               \
	{                                                                                                              \
		return copy(ADDRESS(dst), false, ARRAY(a, offset), true, n, h,                                         \
			    &(struct copy_mode){ .name = "cuMemcpyAtoHAsync", .async = true, .per_thread = PER_THREAD }); \
	}

#define TO_ARRAY_ASYNC(SUFFIX, SIZE, PER_THREAD)                                                                       \
	EXPORT CUresult cuMemcpyHtoAAsync##SUFFIX(CUarray a, SIZE offset, const void *src, SIZE n, CUstream h)         \
	{                                                                                                              \
		return copy(ARRAY(a, offset), true, ADDRESS(src), false, n, h,                                         \
			    &(struct copy_mode){ .name = "cuMemcpyHtoAAsync", .async = true, .per_thread = PER_THREAD }); \
	}

FROM_ARRAY(cuMemcpyAtoD, , CUdeviceptr_v1, unsigned int, false, true)
FROM_ARRAY(cuMemcpyAtoD, _v2, CUdeviceptr, size_t, false, true)
FROM_ARRAY(cuMemcpyAtoD, _v2_ptds, CUdeviceptr, size_t, true, true)
FROM_ARRAY(cuMemcpyAtoH, , void *, unsigned int, false, false)
FROM_ARRAY(cuMemcpyAtoH, _v2, void *, size_t, false, false)
FROM_ARRAY(cuMemcpyAtoH, _v2_ptds, void *, size_t, true, false)
TO_ARRAY(cuMemcpyDtoA, , CUdeviceptr_v1, unsigned int, false, true)
TO_ARRAY(cuMemcpyDtoA, _v2, CUdeviceptr, size_t, false, true)
TO_ARRAY(cuMemcpyDtoA, _v2_ptds, CUdeviceptr, size_t, true, true)
TO_ARRAY(cuMemcpyHtoA, , const void *, unsigned int, false, false)
TO_ARRAY(cuMemcpyHtoA, _v2, const void *, size_t, false, false)
TO_ARRAY(cuMemcpyHtoA, _v2_ptds, const void *, size_t, true, false)
BETWEEN_ARRAYS(, unsigned int, false)
BETWEEN_ARRAYS(_v2, size_t, false)
BETWEEN_ARRAYS(_v2_ptds, size_t, true)
FROM_ARRAY_ASYNC(, unsigned int, false)
FROM_ARRAY_ASYNC(_v2, size_t, false)
FROM_ARRAY_ASYNC(_v2_ptsz, size_t, true)
TO_ARRAY_ASYNC(, unsigned int, false)
TO_ARRAY_ASYNC(_v2, size_t, false)
TO_ARRAY_ASYNC(_v2_ptsz, size_t, true)
