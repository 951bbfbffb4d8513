/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies and sets as they were when a device address had 32 bits. They are
 * still exported; an address that fits is hardly ever one of this process.
 */
#include "sim.h"

EXPORT CUresult cuMemcpyHtoD(CUdeviceptr_v1 dst, const void *src, unsigned int n)
{
	return cuMemcpyHtoD_v2(dst, src, n);
}

EXPORT CUresult cuMemcpyDtoH(void *dst, CUdeviceptr_v1 src, unsigned int n)
{
	return cuMemcpyDtoH_v2(dst, src, n);
}

EXPORT CUresult cuMemcpyDtoD(CUdeviceptr_v1 dst, CUdeviceptr_v1 src, unsigned int n)
{
	return cuMemcpyDtoD_v2(dst, src, n);
}

EXPORT CUresult cuMemcpyHtoDAsync(CUdeviceptr_v1 dst, const void *src, unsigned int n, CUstream h)
{
	return cuMemcpyHtoDAsync_v2(dst, src, n, h);
}

EXPORT CUresult cuMemcpyDtoHAsync(void *dst, CUdeviceptr_v1 src, unsigned int n, CUstream h)
{
	return cuMemcpyDtoHAsync_v2(dst, src, n, h);
}

EXPORT CUresult cuMemcpyDtoDAsync(CUdeviceptr_v1 dst, CUdeviceptr_v1 src, unsigned int n, CUstream h)
{
	return cuMemcpyDtoDAsync_v2(dst, src, n, h);
}

#define SETS(BITS, TYPE)                                                                                               \
	EXPORT CUresult cuMemsetD##BITS(CUdeviceptr_v1 d, TYPE v, unsigned int n)                                      \
	{                                                                                                              \
		return cuMemsetD##BITS##_v2(d, v, n);                                                                  \
	}                                                                                                              \
	EXPORT CUresult cuMemsetD2D##BITS(CUdeviceptr_v1 d, unsigned int pitch, TYPE v, unsigned int w, unsigned int h) \
	{                                                                                                              \
		return cuMemsetD2D##BITS##_v2(d, pitch, v, w, h);                                                      \
	}

SETS(8, unsigned char)
SETS(16, unsigned short)
SETS(32, unsigned int)
