/* SPDX-License-Identifier: Apache-2.0 */
/* host_function: calls CUDA where that is forbidden, in functions that the driver
 * runs between pieces of a stream's work. */
#include "trap.h"

static CUresult result[6];

static void forbidden(void *stream)
{
	CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { CU_MEM_LOCATION_TYPE_DEVICE, { 0 } } };
	CUmemGenericAllocationHandle handle;
	unsigned us = 1, word;
	void *arguments[] = { &us };
	CUdeviceptr p;

	result[0] = cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, arguments, NULL);
	result[1] = cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL);
	result[2] = cuMemcpyDtoH_v2(&word, 64, sizeof(word));
	result[3] = cuMemAlloc_v2(&p, 1 << 20);
	result[4] = cuMemCreate(&handle, 2 << 20, &prop, 0);
	result[5] = cuStreamSynchronize(stream);
}

static void called_back(CUstream stream, CUresult status, void *data)
{
	OK(status);
	forbidden(data ? data : stream);
}

static void say_results(const char *what)
{
	say("%s: %d %d %d %d %d %d", what, result[0], result[1], result[2], result[3], result[4], result[5]);
	memset(result, 0, sizeof(result));
}

int main(void)
{
	CUstream s;

	begin();
	OK(cuStreamCreate(&s, 0));
	OK(cuLaunchHostFunc(s, forbidden, s));
	OK(cuStreamSynchronize(s));
	say_results("host function");
	OK(cuStreamAddCallback(s, called_back, NULL, 0));
	OK(cuStreamSynchronize(s));
	say_results("callback");
	return 0;
}
