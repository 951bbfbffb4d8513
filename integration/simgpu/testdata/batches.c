/* SPDX-License-Identifier: Apache-2.0 */
/* Batches of copies: all of them or none, and which one was wrong. */
#include "test.h"

static unsigned from[4] = { 1, 2, 3, 4 }, to[4];

static void linear(CUstream s)
{
	CUmemcpyAttributes attrs[2] = { { .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL },
					{ .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM } };
	size_t at[2] = { 0, 1 }, sizes[2] = { 8, 8 }, fail = 7;
	CUdeviceptr p, dsts[2], srcs[2];
	CUresult (*batch)(CUdeviceptr *, CUdeviceptr *, size_t *, size_t, CUmemcpyAttributes *, size_t *, size_t, size_t *, CUstream);

	OK(cuGetProcAddress("cuMemcpyBatchAsync", (void **)&batch, 12080, 0, NULL));
	OK(cuMemAlloc(&p, 16));
	OK(cuMemsetD32(p, 9, 4));
	dsts[0] = p;
	dsts[1] = p + 8;
	srcs[0] = (CUdeviceptr)(uintptr_t)from;
	srcs[1] = (CUdeviceptr)(uintptr_t)(from + 2);
	OK(batch(dsts, srcs, sizes, 2, attrs, at, 2, &fail, s));
	OK(cuStreamSynchronize(s));
	OK(cuMemcpyDtoH(to, p, 16));
	CHECK(memcmp(to, from, 16) == 0);

	OK(cuMemsetD32(p, 9, 4));
	dsts[1] = p + 12; /* 4 of its 8 bytes are there */
	GIVES(CUDA_ERROR_INVALID_VALUE, batch(dsts, srcs, sizes, 2, attrs, at, 2, &fail, s));
	CHECK(fail == 1);
	OK(cuStreamSynchronize(s));
	OK(cuMemcpyDtoH(to, p, 16));
	CHECK(to[0] == 9 && to[3] == 9);
	dsts[1] = p + 8;
	at[1] = 0; /* not rising */
	GIVES(CUDA_ERROR_INVALID_VALUE, batch(dsts, srcs, sizes, 2, attrs, at, 2, &fail, s));
	CHECK(fail == SIZE_MAX);
	at[1] = 1;
	GIVES(CUDA_ERROR_INVALID_VALUE, batch(dsts, srcs, sizes, 2, attrs, at, 2, &fail, NULL));
	OK(cuMemFree(p));
}

static void boxes(CUstream s)
{
	CUDA_ARRAY_DESCRIPTOR d = { .Width = 2, .Height = 2, .Format = CU_AD_FORMAT_UNSIGNED_INT32, .NumChannels = 1 };
	CUDA_MEMCPY3D_BATCH_OP op = { .src = { .type = CU_MEMCPY_OPERAND_TYPE_POINTER }, .dst = { .type = CU_MEMCPY_OPERAND_TYPE_ARRAY },
				      .extent = { 2, 2, 1 }, .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM };
	CUDA_MEMCPY2D down = { .srcMemoryType = CU_MEMORYTYPE_ARRAY, .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = to, .dstPitch = 8,
			       .WidthInBytes = 8, .Height = 2 };
	size_t fail;
	CUarray a;
	CUresult (*batch)(size_t, CUDA_MEMCPY3D_BATCH_OP *, size_t *, unsigned long long, CUstream);

	OK(cuGetProcAddress("cuMemcpy3DBatchAsync", (void **)&batch, 12080, 0, NULL));
	memset(to, 0, sizeof(to));
	OK(cuArrayCreate(&a, &d));
	op.src.op.ptr.ptr = (CUdeviceptr)(uintptr_t)from;
	op.dst.op.array.array = down.srcArray = a;
	OK(batch(1, &op, &fail, 0, s));
	OK(cuStreamSynchronize(s));
	OK(cuMemcpy2D(&down));
	CHECK(memcmp(to, from, 16) == 0);
	op.dst.op.array.offset.x = 1; /* two elements from the last one on */
	GIVES(CUDA_ERROR_INVALID_VALUE, batch(1, &op, &fail, 0, s));
	CHECK(fail == 0);
	OK(cuArrayDestroy(a));
}

int main(int argc, char **argv)
{
	CUstream s;

	begin(argc, argv, 0);
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	linear(s);
	boxes(s);
	return 0;
}
