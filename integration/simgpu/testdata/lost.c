/* SPDX-License-Identifier: Apache-2.0 */
/*
 * lost KERNELS endless|value|idle: has a kernel that never ends, a stream that waits
 * for a value, or nothing, and says so. Meanwhile the GPU is lost. Then (idle: at a
 * line on stdin) nothing works. After a line more the GPU is back, and its old
 * context still is not; a new one works.
 */
#include "test.h"

static void wait_line(void)
{
	char line[8];

	CHECK(fgets(line, sizeof(line), stdin));
}

int main(int argc, char **argv)
{
	CUcontext ctx = begin(argc, argv, 0), other;
	CUfunction endless = function("endless"), spin = function("spin_us");
	CUstream s;
	CUdeviceptr p;
	size_t free, total;
	bool idle = strcmp(argv[2], "idle") == 0;

	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuMemAlloc(&p, 1 << 20));
	if (strcmp(argv[2], "endless") == 0)
		launch(endless, s, 1, 1, NULL);
	if (strcmp(argv[2], "value") == 0)
		hold(s);
	puts("running");
	fflush(stdout);
	if (idle)
		wait_line();
	else
		GIVES(CUDA_ERROR_UNKNOWN, cuCtxSynchronize());
	GIVES(CUDA_ERROR_UNKNOWN, cuMemGetInfo(&free, &total));
	GIVES(CUDA_ERROR_UNKNOWN, cuStreamQuery(s));
	GIVES(CUDA_ERROR_UNKNOWN, cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, s, ARGS(&(unsigned){ 1 }), NULL));
	if (!idle) /* then the GPU is back already */
		GIVES(CUDA_ERROR_UNKNOWN, cuCtxCreate(&other, NULL, 0, 0));
	puts("lost");
	fflush(stdout);
	wait_line();
	GIVES(CUDA_ERROR_UNKNOWN, cuMemAlloc(&p, 1 << 20));
	OK(cuCtxDestroy(ctx));
	OK(cuCtxCreate(&other, NULL, 0, 0));
	OK(cuMemAlloc(&p, 1 << 20));
	OK(cuCtxSynchronize());
	puts("back");
	return 0;
}
