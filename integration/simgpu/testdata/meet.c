/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A kernel that spins until another one runs: of another stream, and with a file
 * of another process.
 *
 *   meet KERNELS [FILE]
 */
#include <fcntl.h>
#include <sys/mman.h>

#include "test.h"

int main(int argc, char **argv)
{
	CUstream one, two;
	unsigned *arrived;
	CUdeviceptr p;

	begin(argc, argv, 0);
	CUfunction meet = function("meet");
	OK(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&two, CU_STREAM_NON_BLOCKING));
	OK(cuMemAlloc(&p, sizeof(unsigned)));
	OK(cuMemsetD32(p, 0, 1));
	launch(meet, one, 1, 1, ARGS(&p, &(unsigned){ 2 }));
	sleep_ms(20);
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(one));
	launch(meet, two, 1, 1, ARGS(&p, &(unsigned){ 2 }));
	OK(cuCtxSynchronize());
	if (argc == 2)
		return 0;
	int fd = open(argv[2], O_RDWR);
	CHECK(fd >= 0);
	arrived = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	CHECK(arrived != MAP_FAILED);
	OK(cuMemHostRegister(arrived, 4096, CU_MEMHOSTREGISTER_DEVICEMAP));
	OK(cuMemHostGetDevicePointer(&p, arrived, 0));
	launch(meet, one, 1, 1, ARGS(&p, &(unsigned){ 2 }));
	OK(cuStreamSynchronize(one));
	CHECK(*arrived == 2);
	return 0;
}
