/* SPDX-License-Identifier: Apache-2.0 */
/* attach KERNELS: a context is there until its last use is over. */
#include "test.h"

int main(int argc, char **argv)
{
	CUcontext ctx = begin(argc, argv, 0), again, other, current;
	CUdevice device;

	OK(cuCtxAttach(&again, 0));
	CHECK(again == ctx);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuCtxAttach(&again, 1));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuCtxAttach(NULL, 0));
	OK(cuCtxDetach(ctx));
	OK(cuCtxSynchronize());

	/* It must be the current one. */
	OK(cuCtxGetDevice(&device));
	OK(cuCtxCreate(&other, NULL, 0, device));
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxDetach(ctx));
	OK(cuCtxDetach(other));
	OK(cuCtxGetCurrent(&current));
	CHECK(current == ctx);

	OK(cuCtxDetach(ctx));
	OK(cuCtxGetCurrent(&current));
	CHECK(current == NULL);
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxDetach(ctx));
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxAttach(&again, 0));

	/* A primary context ends with its last release. */
	OK(cuDevicePrimaryCtxRetain(&ctx, device));
	OK(cuCtxSetCurrent(ctx));
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuCtxDetach(ctx));
	OK(cuDevicePrimaryCtxRelease(device));
	return 0;
}
