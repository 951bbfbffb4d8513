/* SPDX-License-Identifier: Apache-2.0 */
/*
 * swap KERNELS BYTES: has so much managed memory, says "running", and for each line
 * that it reads computes once and says how long that took, in us.
 */
#include "test.h"

int main(int argc, char **argv)
{
	struct timespec from, to;
	unsigned us = 100;
	CUdeviceptr p;
	char line[64];

	begin(argc, argv, 0);
	CUfunction f = function("spin_us");

	OK(cuMemAllocManaged(&p, strtoul(argv[2], NULL, 10), CU_MEM_ATTACH_GLOBAL));
	printf("running\n");
	fflush(stdout);
	while (fgets(line, sizeof(line), stdin)) {
		clock_gettime(CLOCK_MONOTONIC, &from);
		launch(f, NULL, 1, 1, ARGS(&us));
		OK(cuCtxSynchronize());
		clock_gettime(CLOCK_MONOTONIC, &to);
		printf("%ld\n", (to.tv_sec - from.tv_sec) * 1000000 + (to.tv_nsec - from.tv_nsec) / 1000);
		fflush(stdout);
	}
	OK(cuMemFree(p));
	return 0;
}
