/* SPDX-License-Identifier: Apache-2.0 */
/* An address that is none of the driver's, in the place of one that must be: an error of the call, and nothing is touched. */
#include "test.h"

#define WILD ((CUdeviceptr)0x1234000)

static unsigned own[16];

static void refuse(CUdeviceptr wrong, CUdeviceptr good, CUcontext ctx, CUstream s)
{
	CUDA_MEMCPY2D from = { .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = wrong, .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = own,
			       .WidthInBytes = 4, .Height = 1 };
	CUDA_MEMCPY2D to = { .srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = own, .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = wrong,
			     .WidthInBytes = 4, .Height = 1 };

	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(wrong, own, 4));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoDAsync(wrong, own, 4, s));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(own, wrong, 4));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoHAsync(own, wrong, 4, s));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoD(wrong, good, 4));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoD(good, wrong, 4));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoDAsync(wrong, good, 4, s));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyPeer(wrong, ctx, good, ctx, 4));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&from));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&to));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy2DAsync(&to, s));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(wrong, 1, 4));
}

static void arrays(CUdeviceptr wrong)
{
	CUDA_ARRAY_DESCRIPTOR d = { .Width = 16, .Format = CU_AD_FORMAT_UNSIGNED_INT32, .NumChannels = 1 };
	CUarray a;

	OK(cuArrayCreate(&a, &d));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoA(a, 0, wrong, 4));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyAtoD(wrong, a, 0, 4));
	OK(cuMemcpyHtoA(a, 0, own, 64));
	OK(cuArrayDestroy(a));
}

int main(int argc, char **argv)
{
	CUcontext ctx = begin(argc, argv, 0);
	CUdeviceptr p, host = (CUdeviceptr)(uintptr_t)own;
	unsigned *pinned;
	CUstream s;

	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuMemAlloc(&p, 64));
	OK(cuMemsetD8(p, 7, 64));
	own[3] = 3;
	refuse(WILD, p, ctx, s);
	refuse(host, p, ctx, s);
	arrays(WILD);
	arrays(host);
	OK(cuCtxSynchronize()); /* no error stays */
	CHECK(own[3] == 3);
	/* These take any memory. */
	OK(cuMemcpy(host, p, 64));
	CHECK(own[3] == 0x07070707);
	OK(cuMemcpyAsync(p, host, 64, s));
	OK(cuStreamSynchronize(s));
	/* With unified addresses pinned memory is the device's, too. */
	OK(cuMemAllocHost((void **)&pinned, 64));
	OK(cuMemcpyDtoH(own, (CUdeviceptr)(uintptr_t)pinned, 64));
	OK(cuMemcpyHtoD((CUdeviceptr)(uintptr_t)pinned, own, 64));
	OK(cuMemFreeHost(pinned));
	OK(cuMemFree(p));
	return 0;
}
