/* SPDX-License-Identifier: Apache-2.0 */
/* memory KERNELS: fills the GPU to the end, and says how much it got. */
#include "test.h"

int main(int argc, char **argv)
{
	size_t free0, free1, total, got = 0;
	CUdeviceptr p, first = 0;

	begin(argc, argv, 0);
	OK(cuMemGetInfo(&free0, &total));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&p, total));
	while (cuMemAlloc(&p, 1 << 20) == CUDA_SUCCESS) {
		first = first ? first : p;
		got += 1 << 20;
	}
	OK(cuMemGetInfo(&free1, &total));
	CHECK(free1 < 1 << 20 && free0 - free1 == got);
	OK(cuMemFree(first));
	OK(cuMemAlloc(&p, 1 << 20));
	printf("%zu\n", got);
	return 0;
}
