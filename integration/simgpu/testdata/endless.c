/* SPDX-License-Identifier: Apache-2.0 */
/*
 * endless KERNELS BYTES [fork]: takes memory, starts a kernel that never ends, says
 * so, waits to be killed. With fork it leaves a child behind, which has no driver.
 */
#include "test.h"

int main(int argc, char **argv)
{
	CUdeviceptr p;

	begin(argc, argv, 0);
	CUfunction f = function("endless"), spin = function("spin_us");
	OK(cuMemAlloc(&p, strtoull(argv[2], NULL, 10)));
	launch(spin, NULL, 1, 1, ARGS(&(unsigned){ 1000 }));
	OK(cuCtxSynchronize());
	launch(f, NULL, 1, 1, NULL);
	launch(spin, NULL, 1, 1, ARGS(&(unsigned){ 1000 }));
	if (argc > 3 && fork() == 0) {
		int n;

		GIVES(CUDA_ERROR_NOT_INITIALIZED, cuInit(0));
		GIVES(CUDA_ERROR_NOT_INITIALIZED, cuDeviceGetCount(&n));
		fclose(stdout);
		sleep_ms(3000);
		_exit(0);
	}
	puts("running");
	fflush(stdout);
	for (;;)
		pause();
}
