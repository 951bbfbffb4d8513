/* SPDX-License-Identifier: Apache-2.0 */
/*
 * endless KERNELS BYTES [fork | clone]: takes memory, starts a kernel that never
 * ends, says so, waits to be killed. With fork it leaves a child behind, which has
 * no driver; with clone one in which no handler ran and that has all its files,
 * until its input ends.
 */
#include "test.h"
#include <signal.h>
#include <sys/syscall.h>

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
	if (argc > 3 && !strcmp(argv[3], "clone") && syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) == 0) {
		char c;

		close(1);
		while (read(0, &c, 1) > 0)
			;
		_exit(0);
	}
	if (argc > 3 && !strcmp(argv[3], "fork") && fork() == 0) {
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
