/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank: one of several processes that compute a collective again and again.
 *
 *   rank --meet FILE [--ranks N] [--rounds N] [--gpu-us US] [--kernels DIR]
 *
 * Waits until all ranks have a GPU. Then, in each round, it computes for --gpu-us
 * and launches a kernel that spins until that of each rank runs. They meet in the
 * first page of FILE, which all map and which begins as zeros: its first word
 * counts the kernels, its second the ranks. Says "done" after the last round.
 */
#include "common.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <time.h>

#define PAGE 4096

int main(int argc, char **argv)
{
	const char *path = option_text(argc, argv, "--meet", "");
	uint32_t ranks = (uint32_t)option_u64(argc, argv, "--ranks", 2);
	uint32_t rounds = (uint32_t)option_u64(argc, argv, "--rounds", 20);
	uint32_t gpu_us = (uint32_t)option_u64(argc, argv, "--gpu-us", 1000);
	int fd = open(path, O_RDWR);
	CUfunction spin, meet;
	CUdeviceptr arrived;
	CUstream stream;
	_Atomic uint32_t *page;

	page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (fd < 0 || page == MAP_FAILED)
		fail("failed to map %s, which --meet names", path);
	open_device();
	spin = load_kernel(argc, argv, "spin_us");
	meet = load_kernel(argc, argv, "meet");
	CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CU(cuMemHostRegister((void *)page, PAGE, CU_MEMHOSTREGISTER_DEVICEMAP));
	CU(cuMemHostGetDevicePointer(&arrived, (void *)page, 0));
	atomic_fetch_add(&page[1], 1);
	while (atomic_load(&page[1]) < ranks)
		nanosleep(&(struct timespec){ .tv_nsec = 1000000 }, NULL);
	for (uint32_t round = 1; round <= rounds; round++) {
		uint32_t all = round * ranks;
		void *params[] = { &arrived, &all };

		launch_spin(spin, gpu_us, stream);
		CU(cuLaunchKernel(meet, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
		CU(cuStreamSynchronize(stream));
	}
	printf("done\n");
	return 0;
}
