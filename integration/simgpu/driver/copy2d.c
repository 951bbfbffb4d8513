/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of rectangles. Arrays are not simulated. */
#include "copy.h"

static bool side(CUmemorytype type, const void *host, CUdeviceptr device, size_t x, size_t y, size_t pitch, size_t width, size_t height,
		 uint64_t *at, size_t *out_pitch)
{
	if (type == CU_MEMORYTYPE_HOST)
		*at = (uint64_t)(uintptr_t)host;
	else if (type == CU_MEMORYTYPE_DEVICE || type == CU_MEMORYTYPE_UNIFIED)
		*at = device;
	else
		return false;
	*out_pitch = pitch ? pitch : x + width;
	*at += y * *out_pitch + x;
	return height <= 1 || *out_pitch >= x + width;
}

static CUresult copy2d(const CUDA_MEMCPY2D *p, CUstream h, const struct copy_mode *m)
{
	struct copy c = { 0 };

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	if (p->srcMemoryType == CU_MEMORYTYPE_ARRAY || p->dstMemoryType == CU_MEMORYTYPE_ARRAY)
		return CUDA_ERROR_NOT_SUPPORTED;
	c.width = p->WidthInBytes;
	c.height = p->Height;
	if (!side(p->srcMemoryType, p->srcHost, p->srcDevice, p->srcXInBytes, p->srcY, p->srcPitch, c.width, c.height, &c.src, &c.src_pitch) ||
	    !side(p->dstMemoryType, p->dstHost, p->dstDevice, p->dstXInBytes, p->dstY, p->dstPitch, c.width, c.height, &c.dst, &c.dst_pitch))
		return CUDA_ERROR_INVALID_VALUE;
	return copy_call(&c, h, m);
}

EXPORT CUresult cuMemcpy2D_v2(const CUDA_MEMCPY2D *p)
{
	return copy2d(p, NULL, &(struct copy_mode){ "cuMemcpy2D", false, false });
}

EXPORT CUresult cuMemcpy2D_v2_ptds(const CUDA_MEMCPY2D *p)
{
	return copy2d(p, NULL, &(struct copy_mode){ "cuMemcpy2D", false, true });
}

EXPORT CUresult cuMemcpy2DUnaligned_v2(const CUDA_MEMCPY2D *p)
{
	return copy2d(p, NULL, &(struct copy_mode){ "cuMemcpy2DUnaligned", false, false });
}

EXPORT CUresult cuMemcpy2DUnaligned_v2_ptds(const CUDA_MEMCPY2D *p)
{
	return copy2d(p, NULL, &(struct copy_mode){ "cuMemcpy2DUnaligned", false, true });
}

EXPORT CUresult cuMemcpy2DAsync_v2(const CUDA_MEMCPY2D *p, CUstream h)
{
	return copy2d(p, h, &(struct copy_mode){ "cuMemcpy2DAsync", true, false });
}

EXPORT CUresult cuMemcpy2DAsync_v2_ptsz(const CUDA_MEMCPY2D *p, CUstream h)
{
	return copy2d(p, h, &(struct copy_mode){ "cuMemcpy2DAsync", true, true });
}
