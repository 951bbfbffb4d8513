/* SPDX-License-Identifier: Apache-2.0 */
/* Wrong use, and errors that stay. */
#include "test.h"

int main(int argc, char **argv)
{
	CUdeviceptr p, wild = 0x1234500;
	CUcontext ctx, other, got;
	CUmodule m;
	CUdevice dev;
	CUfunction f;
	const char *text;
	int n;

	GIVES(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&n));
	ctx = begin(argc, argv, 0);
	OK(cuGetErrorName(CUDA_ERROR_OUT_OF_MEMORY, &text));
	CHECK(strcmp(text, "CUDA_ERROR_OUT_OF_MEMORY") == 0);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGetErrorName((CUresult)12345, &text));
	GIVES(CUDA_ERROR_INVALID_DEVICE, cuDeviceGet(&dev, 99));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAlloc(&p, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(wild));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(wild, 0, 4));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery((CUstream)0x5555));
	GIVES(CUDA_ERROR_NOT_SUPPORTED, cuGetExportTable(&(const void *){ 0 }, &(CUuuid){ 0 }));
	GIVES(CUDA_ERROR_INVALID_PTX, cuModuleLoadData(&m, "hello"));
	GIVES(CUDA_ERROR_NO_BINARY_FOR_GPU, cuModuleLoadData(&m, "\177ELF"));

	/* Memory: inside an allocation everything, beyond its end nothing. */
	OK(cuMemAlloc(&p, 1000));
	OK(cuMemsetD8(p, 1, 1000));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(p, 1, 1001));
	unsigned long long at[2];
	OK(cuMemcpyDtoH(at, p + 984, 16));
	CHECK(at[1] == 0x0101010101010101ull);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemcpyDtoH(at, p + 985, 16));
	CUdeviceptr base;
	size_t size;
	OK(cuMemGetAddressRange(&base, &size, p + 500));
	CHECK(base == p && size == 1000);
	unsigned type;
	OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
	CHECK(type == CU_MEMORYTYPE_DEVICE);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, wild));

	/* Rectangles. */
	char grid[6][8];
	memset(grid, 0, sizeof(grid));
	OK(cuMemcpy2D(&(CUDA_MEMCPY2D){ .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = p, .srcPitch = 100,
					.dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = grid, .dstPitch = 8, .dstXInBytes = 2,
					.dstY = 1, .WidthInBytes = 4, .Height = 3 }));
	CHECK(grid[0][2] == 0 && grid[1][1] == 0 && grid[1][2] == 1 && grid[3][5] == 1 && grid[3][6] == 0 && grid[4][2] == 0);

	/* The stack of contexts. */
	OK(cuCtxCreate(&other, NULL, 0, 0));
	OK(cuCtxGetCurrent(&got));
	CHECK(got == other);
	OK(cuCtxPopCurrent(&got));
	OK(cuCtxGetCurrent(&got));
	CHECK(got == ctx);
	OK(cuCtxDestroy(other));
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxSetCurrent(other));
	OK(cuDevicePrimaryCtxRetain(&got, 0));
	OK(cuDevicePrimaryCtxRetain(&other, 0));
	CHECK(got == other);
	OK(cuDevicePrimaryCtxRelease(0));
	OK(cuDevicePrimaryCtxRelease(0));
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuDevicePrimaryCtxRelease(0));

	/* The linker takes PTX; libraries belong to no context. */
	CUlinkState link;
	CUlibrary lib;
	CUkernel kernel;
	void *cubin;
	char path[4096];
	snprintf(path, sizeof(path), "%s/fill_u32.ptx", kernels_dir);
	char *ptx = read_text(path);
	OK(cuLinkCreate(0, NULL, NULL, &link));
	OK(cuLinkAddData(link, CU_JIT_INPUT_PTX, ptx, strlen(ptx) + 1, "x", 0, NULL, NULL));
	OK(cuLinkComplete(link, &cubin, &size));
	OK(cuModuleLoadData(&m, cubin));
	OK(cuLinkDestroy(link));
	OK(cuModuleUnload(m));
	OK(cuLibraryLoadData(&lib, ptx, NULL, NULL, 0, NULL, NULL, 0));
	OK(cuLibraryGetKernel(&kernel, lib, "fill_u32"));
	GIVES(CUDA_ERROR_NOT_FOUND, cuLibraryGetKernel(&kernel, lib, "nobody"));
	launch((CUfunction)kernel, NULL, 1, 4, ARGS(&p, &(unsigned){ 77 }, &(unsigned){ 4 }));
	OK(cuMemcpyDtoH(at, p, 16));
	CHECK((unsigned)at[1] == 77);
	OK(cuLibraryUnload(lib));
	free(ptx);

	/* A kernel that touches what is not there: the context is lost, another one is not. */
	f = function("fill_u32");
	GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(f, 0, 1, 1, 1, 1, 1, 0, NULL, ARGS(&p, &n, &n), NULL));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchKernel(f, 1, 1, 1, 1025, 1, 1, 0, NULL, ARGS(&p, &n, &n), NULL));
	launch(f, NULL, 1, 4, ARGS(&wild, &(unsigned){ 1 }, &(unsigned){ 4 }));
	GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
	GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuMemAlloc(&p, 16));
	OK(cuCtxDestroy(ctx));
	OK(cuCtxCreate(&ctx, NULL, 0, 0));
	OK(cuMemAlloc(&p, 16));
	OK(cuCtxSynchronize());
	return 0;
}
