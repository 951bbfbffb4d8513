/* SPDX-License-Identifier: Apache-2.0 */
/*
 * both DIR allocates pieces by CUDA and by OpenCL in turn until there are no more, and says
 * how many each got and what refused the next, as "CUDA N ERROR" and "OpenCL N ERROR"; then
 * "full". When there is a file DIR/go it frees a piece on either side, and says after each
 * what it gets in its place on the other side, and what refuses one more on both.
 */
#define _GNU_SOURCE
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda_abi.h"

#define PIECE ((size_t)8 << 20)
#define MOST  1024

#define OK(call) do { \
	int ok_ = (int)(call); \
	if (ok_ != 0) { \
		fprintf(stderr, "%s returned %d\n", #call, ok_); \
		exit(1); \
	} \
} while (0)

static cl_context context;
static CUdeviceptr plain[MOST];
static cl_mem buffers[MOST];
static int plain_count, buffer_count;

static int by_cuda(void)
{
	CUresult r = cuMemAlloc(&plain[plain_count], PIECE);

	plain_count += r == CUDA_SUCCESS;
	return (int)r;
}

static int by_opencl(void)
{
	cl_int r;

	buffers[buffer_count] = clCreateBuffer(context, CL_MEM_READ_WRITE, PIECE, NULL, &r);
	buffer_count += r == CL_SUCCESS;
	return r;
}

static void say(int cuda, int opencl)
{
	printf("CUDA %d %d\nOpenCL %d %d\n", plain_count, cuda, buffer_count, opencl);
}

int main(int argc, char **argv)
{
	int cuda = 0, opencl = 0;
	cl_platform_id platform;
	cl_device_id device;
	CUcontext primary;
	char path[512];
	cl_int r;

	if (argc != 2)
		return 2;
	setvbuf(stdout, NULL, _IOLBF, 0);
	OK(cuInit(0));
	OK(cuDevicePrimaryCtxRetain(&primary, 0));
	OK(cuCtxSetCurrent(primary));
	OK(clGetPlatformIDs(1, &platform, NULL));
	OK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
	context = clCreateContext(NULL, 1, &device, NULL, NULL, &r);
	OK(r);
	while ((!cuda || !opencl) && plain_count < MOST && buffer_count < MOST) {
		if (!cuda)
			cuda = by_cuda();
		if (!opencl)
			opencl = by_opencl();
	}
	say(cuda, opencl);
	printf("full\n");
	snprintf(path, sizeof(path), "%s/go", argv[1]);
	while (access(path, F_OK) != 0)
		usleep(1000);
	OK(cuMemFree(plain[--plain_count]));
	OK(by_opencl());
	say(by_cuda(), by_opencl());
	OK(clReleaseMemObject(buffers[--buffer_count]));
	OK(by_cuda());
	say(by_cuda(), by_opencl());
	return 0;
}
