/* SPDX-License-Identifier: Apache-2.0 */
/* faults KERNELS: which of six allocations fails, and how long each of ten calls of a kind took at least, in us. */
#include "test.h"

static long long now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000ll + t.tv_nsec / 1000;
}

int main(int argc, char **argv)
{
	CUdeviceptr p[6];
	long long least = 1ll << 60;

	begin(argc, argv, 0);
	for (int i = 0; i < 6; i++)
		if (cuMemAlloc(&p[i], 1000) != CUDA_SUCCESS)
			printf("failed %d\n", i + 1);
	for (int i = 0; i < 10; i++) {
		long long from = now_us();

		OK(cuMemsetD8Async(p[0], 1, 1000, NULL));
		if (now_us() - from < least)
			least = now_us() - from;
	}
	printf("least %lld\n", least);
	return 0;
}
