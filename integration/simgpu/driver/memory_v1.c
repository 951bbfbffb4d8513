/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of the age when a device pointer and a size had 32 bits. What these
 * calls allocate lies below 4 GiB; addresses above it they can not tell.
 */
#include "memory.h"

#define PITCH 512u

/* Into 32 bits, if it fits. */
static CUresult narrow(CUresult r, uint64_t v, unsigned *out)
{
	if (r)
		return r;
	if (v > UINT32_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	*out = (unsigned)v;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAlloc(CUdeviceptr_v1 *out, unsigned int size)
{
	uint64_t at = 0;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = memory_alloc_call(&at, size, MEMORY_DEVICE, MEMORY_LOW, "cuMemAlloc");
	return narrow(r, at, out);
}

EXPORT CUresult cuMemAllocPitch(CUdeviceptr_v1 *out, unsigned int *pitch, unsigned int width, unsigned int height, unsigned int element)
{
	uint64_t at = 0, row = ((uint64_t)width + PITCH - 1) / PITCH * PITCH;

	if (!out || !pitch || (element != 4 && element != 8 && element != 16) || width == 0 || height == 0 || row > UINT32_MAX)
		return CUDA_ERROR_INVALID_VALUE;
	*pitch = (unsigned)row;
	CUresult r = memory_alloc_call(&at, row * height, MEMORY_DEVICE, MEMORY_LOW, "cuMemAllocPitch");
	return narrow(r, at, out);
}

EXPORT CUresult cuMemAllocHost(void **out, unsigned int size)
{
	return cuMemAllocHost_v2(out, size);
}

EXPORT CUresult cuMemFree(CUdeviceptr_v1 p)
{
	return cuMemFree_v2(p);
}

EXPORT CUresult cuMemGetAddressRange(CUdeviceptr_v1 *base, unsigned int *size, CUdeviceptr_v1 p)
{
	CUdeviceptr b = 0;
	size_t n = 0;
	CUresult r = cuMemGetAddressRange_v2(&b, &n, p);

	if (!r && base)
		r = narrow(r, b, base);
	if (!r && size)
		r = narrow(r, n, size);
	return r;
}

/* A GPU may have more than 32 bits can tell. */
EXPORT CUresult cuMemGetInfo(unsigned int *free, unsigned int *total)
{
	size_t f, t;
	CUresult r = cuMemGetInfo_v2(&f, &t);

	if (r)
		return r;
	if (!free || !total)
		return CUDA_ERROR_INVALID_VALUE;
	*free = f < UINT32_MAX ? (unsigned)f : UINT32_MAX;
	*total = t < UINT32_MAX ? (unsigned)t : UINT32_MAX;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemHostGetDevicePointer(CUdeviceptr_v1 *out, void *p, unsigned int flags)
{
	CUdeviceptr at = 0;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	CUresult r = cuMemHostGetDevicePointer_v2(&at, p, flags);
	return narrow(r, at, out);
}

EXPORT CUresult cuMemHostRegister(void *p, size_t size, unsigned int flags)
{
	return cuMemHostRegister_v2(p, size, flags);
}
