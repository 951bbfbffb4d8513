/* SPDX-License-Identifier: Apache-2.0 */
/* Memory sets: 8, 16 and 32 bits wide, rows and rectangles. */
#include "copy.h"

static CUresult set1(CUdeviceptr dst, uint32_t value, uint32_t size, size_t n, CUstream h, const struct copy_mode *m)
{
	return set_call(&(struct set){ .dst = dst, .pitch = n * size, .width = n, .height = 1, .value = value, .size = size }, h, m);
}

static CUresult set2(CUdeviceptr dst, size_t pitch, uint32_t value, uint32_t size, size_t w, size_t hgt, CUstream h,
		     const struct copy_mode *m)
{
	return set_call(&(struct set){ .dst = dst, .pitch = pitch, .width = w, .height = hgt, .value = value, .size = size }, h, m);
}

#define SET1(BITS, TYPE)                                                                                               \
	EXPORT CUresult cuMemsetD##BITS##_v2(CUdeviceptr d, TYPE v, size_t n)                                          \
	{                                                                                                              \
		return set1(d, v, BITS / 8, n, NULL, &(struct copy_mode){ .name = "cuMemsetD" #BITS, .async = false, .per_thread = false }); \
	}                                                                                                              \
	EXPORT CUresult cuMemsetD##BITS##_v2_ptds(CUdeviceptr d, TYPE v, size_t n)                                     \
	{                                                                                                              \
		return set1(d, v, BITS / 8, n, NULL, &(struct copy_mode){ .name = "cuMemsetD" #BITS, .async = false, .per_thread = true }); \
	}                                                                                                              \
	EXPORT CUresult cuMemsetD##BITS##Async(CUdeviceptr d, TYPE v, size_t n, CUstream h)                            \
	{                                                                                                              \
		return set1(d, v, BITS / 8, n, h, &(struct copy_mode){ .name = "cuMemsetD" #BITS "Async", .async = true, .per_thread = false }); \
	}                                                                                                              \
	EXPORT CUresult cuMemsetD##BITS##Async_ptsz(CUdeviceptr d, TYPE v, size_t n, CUstream h)                       \
	{                                                                                                              \
		return set1(d, v, BITS / 8, n, h, &(struct copy_mode){ .name = "cuMemsetD" #BITS "Async", .async = true, .per_thread = true }); \
	}

#define SET2(BITS, TYPE)                                                                                               \
	EXPORT CUresult cuMemsetD2D##BITS##_v2(CUdeviceptr d, size_t p, TYPE v, size_t w, size_t r)                    \
	{                                                                                                              \
		return set2(d, p, v, BITS / 8, w, r, NULL, &(struct copy_mode){ .name = "cuMemsetD2D" #BITS, .async = false, .per_thread = false }); \
	}                                                                                                              \
	EXPORT CUresult cuMemsetD2D##BITS##_v2_ptds(CUdeviceptr d, size_t p, TYPE v, size_t w, size_t r)               \
	{                                                                                                              \
		return set2(d, p, v, BITS / 8, w, r, NULL, &(struct copy_mode){ .name = "cuMemsetD2D" #BITS, .async = false, .per_thread = true }); \
	}                                                                                                              \
	EXPORT CUresult cuMemsetD2D##BITS##Async(CUdeviceptr d, size_t p, TYPE v, size_t w, size_t r, CUstream h)      \
	{                                                                                                              \
		return set2(d, p, v, BITS / 8, w, r, h, &(struct copy_mode){ .name = "cuMemsetD2D" #BITS "Async", .async = true, .per_thread = false }); \
	}                                                                                                              \
	EXPORT CUresult cuMemsetD2D##BITS##Async_ptsz(CUdeviceptr d, size_t p, TYPE v, size_t w, size_t r, CUstream h) \
	{                                                                                                              \
		return set2(d, p, v, BITS / 8, w, r, h, &(struct copy_mode){ .name = "cuMemsetD2D" #BITS "Async", .async = true, .per_thread = true }); \
	}

SET1(8, unsigned char)
SET1(16, unsigned short)
SET1(32, unsigned int)
SET2(8, unsigned char)
SET2(16, unsigned short)
SET2(32, unsigned int)
