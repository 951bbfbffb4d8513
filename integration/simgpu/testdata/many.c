/* SPDX-License-Identifier: Apache-2.0 */
/* A cooperative launch on two devices: what is behind it on one waits for the other too. */
#include "test.h"

int main(int argc, char **argv)
{
	CUDA_LAUNCH_PARAMS list[2];
	CUcontext ctx[2];
	CUdeviceptr p[2];
	CUstream s[2];
	unsigned v, value = 5, n = 1;
	void *params[2][3];

	for (int i = 0; i < 2; i++) {
		ctx[i] = begin(argc, argv, i);
		OK(cuMemAlloc(&p[i], 4));
		OK(cuStreamCreate(&s[i], CU_STREAM_NON_BLOCKING));
		list[i] = (CUDA_LAUNCH_PARAMS){ .function = function("fill_u32"), .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1,
						.blockDimX = 1, .blockDimY = 1, .blockDimZ = 1, .hStream = s[i],
						.kernelParams = params[i] };
		params[i][0] = &p[i];
		params[i][1] = &value;
		params[i][2] = &n;
	}
	OK(cuCtxSetCurrent(ctx[0]));
	hold(s[0]);
	OK(cuLaunchCooperativeKernelMultiDevice(list, 2, 0));
	OK(cuCtxSetCurrent(ctx[1]));
	/* The device has nothing else to do: its kernel would be over with what comes after it. */
	CUstream u;
	OK(cuStreamCreate(&u, CU_STREAM_NON_BLOCKING));
	OK(cuMemsetD32Async(p[1], 1, 1, u));
	OK(cuStreamSynchronize(u));
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(s[1]));
	let_go();
	OK(cuStreamSynchronize(s[1]));
	OK(cuMemcpyDtoH(&v, p[1], 4));
	CHECK(v == 5);
	OK(cuCtxSetCurrent(ctx[0]));
	OK(cuStreamQuery(s[0]));

	list[1].hStream = s[0]; /* one device twice */
	GIVES(CUDA_ERROR_INVALID_DEVICE, cuLaunchCooperativeKernelMultiDevice(list, 2, 0));
	list[1].hStream = NULL;
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuLaunchCooperativeKernelMultiDevice(list, 2, 0));
	list[1].hStream = s[1];
	list[1].gridDimX = 2;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchCooperativeKernelMultiDevice(list, 2, 0));
	return 0;
}
