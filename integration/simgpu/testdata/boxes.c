/* SPDX-License-Identifier: Apache-2.0 */
/* Copies of rectangles and boxes: every byte at its place, and none beside it. */
#include "test.h"

#define W 24
#define H 6
#define D 3

static unsigned char from[D * H * W * 4], to[D * H * W * 4];

static void fresh(void)
{
	for (size_t i = 0; i < sizeof(from); i++)
		from[i] = (unsigned char)(i * 7 + 3);
	memset(to, 0xee, sizeof(to));
}

/* A window of a larger rectangle, through the device, to another place of another pitch. */
static void rectangle(void)
{
	CUDA_MEMCPY2D up = { .srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = from, .srcPitch = W, .srcXInBytes = 3, .srcY = 1,
			     .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstXInBytes = 8, .dstY = 2, .WidthInBytes = 10, .Height = 4 };
	CUDA_MEMCPY2D down = { .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcXInBytes = 8, .srcY = 2, .dstMemoryType = CU_MEMORYTYPE_HOST,
			       .dstHost = to, .dstPitch = 32, .dstXInBytes = 5, .WidthInBytes = 10, .Height = 4 };
	CUdeviceptr p;
	size_t pitch;

	fresh();
	OK(cuMemAllocPitch(&p, &pitch, 40, 8, 4));
	up.dstDevice = down.srcDevice = p;
	up.dstPitch = down.srcPitch = pitch;
	OK(cuMemcpy2D(&up));
	OK(cuMemcpy2D(&down));
	for (size_t y = 0; y < 4; y++)
		for (size_t x = 0; x < 32; x++)
			CHECK(to[y * 32 + x] == (x >= 5 && x < 15 ? from[(y + 1) * W + x - 5 + 3] : 0xee));
	up.srcPitch = 12; /* less than the row */
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&up));
	up.srcPitch = W;
	up.Height = 100; /* past the end of the memory */
	up.dstPitch = 512;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy2D(&up));
	OK(cuMemFree(p));
}

/* Into an array, from one array to another, out again. */
static void box(void)
{
	CUDA_ARRAY3D_DESCRIPTOR d = { .Width = W, .Height = H, .Depth = D, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 4 };
	CUDA_MEMCPY3D up = { .srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = from, .srcPitch = W * 4, .srcHeight = H,
			     .dstMemoryType = CU_MEMORYTYPE_ARRAY, .WidthInBytes = W * 4, .Height = H, .Depth = D };
	CUDA_MEMCPY3D over = { .srcMemoryType = CU_MEMORYTYPE_ARRAY, .srcXInBytes = 8, .srcY = 1, .srcZ = 1,
			       .dstMemoryType = CU_MEMORYTYPE_ARRAY, .dstXInBytes = 4, .dstY = 2, .WidthInBytes = 16, .Height = 3, .Depth = 2 };
	CUDA_MEMCPY3D down = { .srcMemoryType = CU_MEMORYTYPE_ARRAY, .srcXInBytes = 4, .srcY = 2, .dstMemoryType = CU_MEMORYTYPE_HOST,
			       .dstHost = to, .dstPitch = 20, .dstHeight = 4, .WidthInBytes = 16, .Height = 3, .Depth = 2 };
	CUstream s;
	CUarray a, b;

	fresh();
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuArray3DCreate(&a, &d));
	OK(cuArray3DCreate(&b, &d));
	up.dstArray = over.srcArray = a;
	over.dstArray = down.srcArray = b;
	OK(cuMemcpy3D(&up));
	OK(cuMemcpy3DAsync(&over, s));
	OK(cuMemcpy3DAsync(&down, s));
	OK(cuStreamSynchronize(s));
	for (size_t z = 0; z < 2; z++)
		for (size_t y = 0; y < 4; y++)
			for (size_t x = 0; x < 20; x++)
				CHECK(to[(z * 4 + y) * 20 + x] ==
				      (x < 16 && y < 3 ? from[((z + 1) * H + y + 1) * W * 4 + x + 8] : 0xee));
	over.srcXInBytes = 6; /* not a whole element */
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D(&over));
	over.srcXInBytes = 8;
	over.srcZ = 2; /* two planes from the last one on */
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpy3D(&over));
	OK(cuArrayDestroy(a));
	over.srcZ = 1;
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuMemcpy3D(&over));
	OK(cuArrayDestroy(b));
	OK(cuStreamDestroy(s));
}

static void line(void)
{
	CUDA_ARRAY_DESCRIPTOR d = { .Width = 64, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1 };
	CUarray a, b;
	CUdeviceptr p;

	fresh();
	OK(cuMemAlloc(&p, 256));
	OK(cuArrayCreate(&a, &d));
	OK(cuArrayCreate(&b, &d));
	OK(cuMemcpyHtoA(a, 16, from, 128));
	OK(cuMemcpyAtoA(b, 0, a, 32, 64));
	OK(cuMemcpyAtoD(p, b, 0, 64));
	OK(cuMemcpyDtoA(a, 0, p, 64));
	OK(cuMemcpyAtoH(to, a, 0, 64));
	CHECK(memcmp(to, from + 16, 64) == 0 && to[64] == 0xee);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoA(a, 2, from, 64));   /* not a whole element */
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyHtoA(a, 252, from, 64)); /* past the end */
	OK(cuArrayDestroy(a));
	OK(cuArrayDestroy(b));
	OK(cuMemFree(p));
}

int main(int argc, char **argv)
{
	begin(argc, argv, 0);
	rectangle();
	box();
	line();
	return 0;
}
