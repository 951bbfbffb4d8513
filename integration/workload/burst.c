/* SPDX-License-Identifier: Apache-2.0 */
/*
 * burst: bursts of GPU work with a CPU phase between, as training, inference
 * and notebooks have.
 *
 *   burst [--bursts N] [--launches N] [--gpu-us US] [--sync-every N]
 *         [--cpu-us US] [--rest-us US] [--period-us US] [--memory BYTES]
 *         [--managed BYTES] [--await 1] [--kernels DIR]
 *
 * A burst is so many launches that keep the GPU busy for --gpu-us in all; the
 * program waits for them at the end, and with --sync-every after so many launches
 * too, as one that looks at its results does. Between two bursts it computes on
 * the CPU for --cpu-us, and then sleeps for --rest-us, as one that waits for data
 * or for its user does; with --period-us the next one begins no sooner than so long
 * after this one should have, as frames do. With --await it says "ready" before
 * the first burst and waits until its stdin ends. During a burst it has --memory bytes of the GPU, each time
 * by another allocator; from before the first one to its end it has --managed bytes of managed memory. Prints one line of JSON: times in ns of CLOCK_MONOTONIC,
 * and how long each burst took from its first launch to its completion, in us.
 */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void compute(uint64_t us)
{
	uint64_t end = now_ns() + us * 1000;
	volatile double x = 1;

	while (now_ns() < end)
		for (int i = 0; i < 1000; i++)
			x = x * 1.0000001 + 1e-9;
}

static void rest(uint64_t us)
{
	struct timespec t = { .tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000 };

	while (nanosleep(&t, &t))
		;
}

/* Several programs begin together once all are ready. */
static void await_end_of_stdin(void)
{
	printf("ready\n");
	fflush(stdout);
	while (getchar() != EOF)
		;
}

static CUdeviceptr allocate(uint64_t turn, size_t bytes, CUstream stream)
{
	CUdeviceptr p = 0;

	if (!bytes)
		return 0;
	switch (turn % 3) {
	case 0:
		CU(cuMemAlloc(&p, bytes));
		break;
	case 1:
		CU(cuMemAllocAsync(&p, bytes, stream));
		break;
	default:
		CU(cuMemAllocManaged(&p, bytes, CU_MEM_ATTACH_GLOBAL));
	}
	return p;
}

int main(int argc, char **argv)
{
	uint64_t bursts = option_u64(argc, argv, "--bursts", 20);
	uint64_t launches = option_u64(argc, argv, "--launches", 10);
	uint64_t gpu_us = option_u64(argc, argv, "--gpu-us", 20000);
	uint64_t cpu_us = option_u64(argc, argv, "--cpu-us", 20000);
	uint64_t sync_every = option_u64(argc, argv, "--sync-every", launches);
	uint64_t rest_us = option_u64(argc, argv, "--rest-us", 0);
	uint64_t period_us = option_u64(argc, argv, "--period-us", 0);
	uint64_t memory = option_u64(argc, argv, "--memory", 0);
	uint64_t managed = option_u64(argc, argv, "--managed", 0);
	uint64_t *took_us = calloc(bursts + 1, sizeof(*took_us));
	uint64_t begin, ready, end;
	CUfunction spin;
	CUdeviceptr all;
	CUstream stream;

	if (!launches || !sync_every || !took_us)
		fail("--launches and --sync-every must be 1 or more");
	begin = now_ns();
	open_device();
	spin = load_kernel(argc, argv, "spin_us");
	CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	if (managed)
		CU(cuMemAllocManaged(&all, managed, CU_MEM_ATTACH_GLOBAL));
	if (option_u64(argc, argv, "--await", 0))
		await_end_of_stdin();
	ready = now_ns();
	for (uint64_t b = 0; b < bursts; b++) {
		uint64_t start = now_ns();
		CUdeviceptr p = allocate(b, memory, stream);

		for (uint64_t l = 1; l <= launches; l++) {
			launch_spin(spin, (uint32_t)(gpu_us / launches), stream);
			if (l % sync_every == 0 || l == launches)
				CU(cuStreamSynchronize(stream));
		}
		if (p)
			CU(cuMemFree(p));
		took_us[b] = (now_ns() - start) / 1000;
		compute(cpu_us);
		rest(rest_us);
		uint64_t next = ready + (b + 1) * period_us * 1000, now = now_ns();

		if (period_us && now < next)
			rest((next - now) / 1000);
	}
	end = now_ns();
	printf("{\"program\":\"burst\",\"bursts\":%llu,\"gpu_us\":%llu,\"cpu_us\":%llu,\"rest_us\":%llu,"
	       "\"begin_ns\":%llu,\"ready_ns\":%llu,\"end_ns\":%llu,\"burst_us\":[",
	       (unsigned long long)bursts, (unsigned long long)gpu_us, (unsigned long long)cpu_us,
	       (unsigned long long)rest_us,
	       (unsigned long long)begin, (unsigned long long)ready, (unsigned long long)end);
	for (uint64_t b = 0; b < bursts; b++)
		printf("%s%llu", b ? "," : "", (unsigned long long)took_us[b]);
	printf("]}\n");
	return 0;
}
