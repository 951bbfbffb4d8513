/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hog: keeps its queue full and never pauses.
 *
 *   hog [--ms MS] [--kernel-us US] [--depth N] [--kernels DIR]
 *
 * Runs for --ms (0: until SIGTERM) with --depth kernels of --kernel-us in flight
 * (0: as many as the driver takes; it never looks back).
 * Says "running" once its first kernel was complete, and prints one line of JSON
 * at the end.
 */
#include "common.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

static volatile sig_atomic_t ended;

static void end(int signal)
{
	(void)signal;
	ended = 1;
}

int main(int argc, char **argv)
{
	uint64_t ms = option_u64(argc, argv, "--ms", 1000);
	uint64_t kernel_us = option_u64(argc, argv, "--kernel-us", 1000);
	uint64_t depth = option_u64(argc, argv, "--depth", 4);
	CUevent *done = calloc(depth + 1, sizeof(CUevent));
	uint64_t first = depth ? depth : 1;
	uint64_t begin, launched = 0;
	CUfunction spin;
	CUstream stream;

	if (!done)
		fail("no memory for so many events");
	signal(SIGTERM, end);
	open_device();
	spin = load_kernel(argc, argv, "spin_us");
	CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	for (uint64_t i = 0; i < depth; i++)
		CU(cuEventCreate(&done[i], CU_EVENT_DISABLE_TIMING | CU_EVENT_BLOCKING_SYNC));
	begin = now_ns();
	while (!ended && (!ms || now_ns() - begin < ms * 1000000)) {
		CUevent slot = depth ? done[launched % depth] : NULL;

		if (depth && launched >= depth)
			CU(cuEventSynchronize(slot));
		if (launched == first) {
			if (!depth)
				CU(cuStreamSynchronize(stream));
			printf("running\n");
			fflush(stdout);
		}
		launch_spin(spin, (uint32_t)kernel_us, stream);
		if (depth)
			CU(cuEventRecord(slot, stream));
		launched++;
	}
	CU(cuStreamSynchronize(stream));
	printf("{\"program\":\"hog\",\"kernels\":%llu,\"begin_ns\":%llu,\"end_ns\":%llu}\n",
	       (unsigned long long)launched, (unsigned long long)begin, (unsigned long long)now_ns());
	return 0;
}
