/* SPDX-License-Identifier: Apache-2.0 */
/* launch_v1 KERNELS: launches as before CUDA 4, with parameters that the function keeps. */
#include "test.h"

#define N 64

static CUdeviceptr memory;
static unsigned values[N];

static const unsigned *seen(void)
{
	OK(cuMemcpyDtoH(values, memory, sizeof(values)));
	return values;
}

int main(int argc, char **argv)
{
	begin(argc, argv, 0);
	CUfunction fill = function("fill_u32");
	CUstream stream;

	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuMemAlloc(&memory, sizeof(values)));
	OK(cuMemsetD32(memory, 0, N));

	/* Nothing of it was said yet. */
	GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunch(fill));
	OK(cuFuncSetBlockShape(fill, 16, 1, 1));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunch(fill));
	OK(cuParamSetv(fill, 0, &memory, sizeof(memory)));
	OK(cuParamSeti(fill, 8, 1));
	OK(cuParamSeti(fill, 12, N));
	OK(cuParamSetSize(fill, 12));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunch(fill));
	OK(cuParamSetSize(fill, 16));
	OK(cuFuncSetSharedSize(fill, 64));

	/* One block, a grid, a grid on a stream: 16, all, 32 threads. */
	OK(cuLaunch(fill));
	CHECK(seen()[15] == 1 && seen()[16] == 0);
	OK(cuParamSeti(fill, 8, 2));
	OK(cuLaunchGrid(fill, N / 16, 1));
	CHECK(seen()[0] == 2 && seen()[N - 1] == 2);
	OK(cuParamSetf(fill, 8, 1.0f));
	OK(cuLaunchGridAsync(fill, 2, 1, stream));
	OK(cuStreamSynchronize(stream));
	CHECK(seen()[31] == 0x3f800000 && seen()[32] == 2);

	/* What a function keeps is its own. */
	GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunch(function("spin_us")));

	GIVES(CUDA_ERROR_INVALID_VALUE, cuLaunchGrid(fill, 0, 1));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuFuncSetBlockShape(fill, 0, 1, 1));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuParamSetSize(fill, 1 << 20));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuParamSetv(fill, -1, &memory, sizeof(memory)));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuParamSetv(fill, 4090, &memory, sizeof(memory)));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuFuncSetBlockShape((CUfunction)&memory, 1, 1, 1));
	return 0;
}
