/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes that no memory has, up to the last that can be said: none seems to succeed, or makes a later one smaller. */
#include "test.h"

static const size_t sizes[] = { SIZE_MAX, SIZE_MAX - 1, SIZE_MAX - 510, SIZE_MAX - 511, SIZE_MAX - 4095, SIZE_MAX - (2 << 20),
				SIZE_MAX - (32 << 20), SIZE_MAX / 2, (size_t)1 << 62, (size_t)1 << 50 };
#define SIZES (sizeof(sizes) / sizeof(sizes[0]))

static size_t room(void)
{
	size_t free, total;

	OK(cuMemGetInfo(&free, &total));
	return free;
}

static void allocations(CUstream s)
{
	CUmemAllocationProp here = { .type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 } };
	CUmemAllocationProp host = { .type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { .type = CU_MEM_LOCATION_TYPE_HOST } };
	CUmemGenericAllocationHandle h;
	size_t before = room(), pitch;
	CUdeviceptr p = 0;
	void *own;

	for (size_t i = 0; i < SIZES; i++) {
		size_t pages = sizes[i] / (2 << 20) * (2 << 20);

		GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&p, sizes[i]));
		GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocManaged(&p, sizes[i], CU_MEM_ATTACH_GLOBAL));
		GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocHost(&own, sizes[i]));
		GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemHostAlloc(&own, sizes[i], 0));
		GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocAsync(&p, sizes[i], s));
		CHECK(cuMemAllocPitch(&p, &pitch, sizes[i], 4, 4) != CUDA_SUCCESS);
		CHECK(cuMemAllocPitch(&p, &pitch, 4, sizes[i], 4) != CUDA_SUCCESS);
		GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&h, pages, &here, 0));
		GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&h, pages, &host, 0));
		GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAddressReserve(&p, pages, 0, 0, 0));
	}
	OK(cuStreamSynchronize(s));
	CHECK(room() == before);
}

static void in_a_graph(void)
{
	CUDA_MEM_ALLOC_NODE_PARAMS a = { .poolProps = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
							.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 } } };
	CUgraphNode n;
	CUgraph g;

	OK(cuGraphCreate(&g, 0));
	for (size_t i = 0; i < SIZES; i++) {
		a.bytesize = sizes[i];
		GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuGraphAddMemAllocNode(&n, g, NULL, 0, &a));
	}
	OK(cuGraphDestroy(g));
}

/* Of memory that is there, more than there is: products that do not fit must not look small. */
static void uses(CUcontext ctx, CUstream s)
{
	CUDA_MEMSET_NODE_PARAMS m = { .elementSize = 4, .height = 1 };
	CUDA_MEMCPY3D c = { .srcMemoryType = CU_MEMORYTYPE_DEVICE, .dstMemoryType = CU_MEMORYTYPE_DEVICE };
	CUDA_MEMCPY2D d = { .srcMemoryType = CU_MEMORYTYPE_DEVICE, .dstMemoryType = CU_MEMORYTYPE_DEVICE };
	unsigned own[64];
	CUdeviceptr p;
	CUgraphNode n;
	CUgraph g;

	OK(cuMemAlloc(&p, 4096));
	OK(cuGraphCreate(&g, 0));
	m.dst = p;
	c.srcDevice = d.srcDevice = p;
	c.dstDevice = d.dstDevice = p + 2048;
	for (size_t i = 0; i < SIZES; i++) {
		GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoD(p, p, sizes[i]));
		GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoD(p, own, sizes[i]));
		GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoHAsync(own, p, sizes[i], s));
		GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(p, 0, sizes[i]));
		GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD32(p, 0, sizes[i]));
		GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD32Async(p, 0, ((size_t)1 << 62) + i, s));
		GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD2D8(p, sizes[i] / 3, 0, 4, 4));
		GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD2D8(p, 64, 0, 4, sizes[i]));
		m.width = ((size_t)1 << 62) + i;
		GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemsetNode(&n, g, NULL, 0, &m, ctx));
		d.WidthInBytes = sizes[i];
		d.Height = 2;
		GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&d));
		d.WidthInBytes = 4;
		d.Height = sizes[i];
		GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&d));
		d.Height = 2;
		d.srcY = sizes[i];
		GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&d));
		d.srcY = 0;
		c.WidthInBytes = 4;
		c.Height = 2;
		c.Depth = 2;
		c.srcHeight = sizes[i];
		GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D(&c));
		c.srcHeight = 0;
		c.Depth = sizes[i];
		GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D(&c));
		c.Depth = 1;
		c.dstZ = sizes[i];
		GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D(&c));
		c.dstZ = 0;
	}
	OK(cuGraphDestroy(g));
	OK(cuMemFree(p));
}

static void arrays(void)
{
	CUDA_ARRAY3D_DESCRIPTOR d = { .Width = 64, .Height = 64, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 4 };
	CUarray a;

	for (size_t i = 0; i < SIZES; i++) {
		d.Depth = sizes[i];
		GIVES(CUDA_ERROR_INVALID_VALUE, cuArray3DCreate(&a, &d));
		d.Flags = CUDA_ARRAY3D_LAYERED;
		GIVES(CUDA_ERROR_INVALID_VALUE, cuArray3DCreate(&a, &d));
		d.Flags = 0;
	}
	d.Width = d.Height = d.Depth = 16384;
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuArray3DCreate(&a, &d));
	/* A batch counts elements, and so might make few bytes of many. */
	d = (CUDA_ARRAY3D_DESCRIPTOR){ .Width = 64, .Height = 4, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1 };
	OK(cuArray3DCreate(&a, &d));
	CUDA_MEMCPY3D_BATCH_OP op = { .src = { .type = CU_MEMCPY_OPERAND_TYPE_ARRAY, .op.array.array = a },
				      .dst = { .type = CU_MEMCPY_OPERAND_TYPE_POINTER }, .extent = { ((size_t)1 << 62) + 1, 1, 1 },
				      .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM };
	CUstream s;
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuMemAlloc(&op.dst.op.ptr.ptr, 4096));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync(1, &op, 0, s));
	op.extent.width = 1;
	op.src.op.array.offset.x = (size_t)1 << 62;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3DBatchAsync(1, &op, 0, s));
	OK(cuArrayDestroy(a));
}

int main(int argc, char **argv)
{
	CUcontext ctx = begin(argc, argv, 0);
	CUstream s;

	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	allocations(s);
	in_a_graph();
	uses(ctx, s);
	arrays();
	return 0;
}
