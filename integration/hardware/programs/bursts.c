/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bursts: bursts of stamped work.
 *
 *   bursts [--bursts N] [--launches N] [--us US] [--gap-us US] [--for-ms MS]
 *          [--way stream|graph] [--capacity N] [--loops-per-us N] [--kernels DIR]
 *   bursts --calibrate
 *
 * A burst is so many kernels of so many microseconds, launched one by one or as one
 * graph, and waited for; then the program sleeps for the gap. --for-ms goes on with
 * bursts until so long has passed. Says "ready", waits for a line, works, and prints
 * lines: "began NS", "first NS" (the first burst is over), "ended NS" of
 * CLOCK_MONOTONIC, "clock ..." before and behind, "span ..." for each kernel.
 * --calibrate prints "loops N", which --loops-per-us takes.
 */
#include "stamps.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

static CUgraphExec graph_of(const struct stamps *s, uint64_t launches, uint32_t loops, CUstream stream)
{
	CUgraph graph;
	CUgraphExec exec;

	CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	for (uint64_t i = 0; i < launches; i++)
		stamps_launch(s, loops, stream);
	CU(cuStreamEndCapture(stream, &graph));
	CU(cuGraphInstantiateWithFlags(&exec, graph, 0));
	return exec;
}

static void rest(uint64_t us)
{
	struct timespec t = { .tv_sec = (time_t)(us / 1000000), .tv_nsec = (long)(us % 1000000) * 1000 };

	while (us && nanosleep(&t, &t))
		;
}

int main(int argc, char **argv)
{
	uint64_t bursts = option_u64(argc, argv, "--bursts", 10);
	uint64_t launches = option_u64(argc, argv, "--launches", 10);
	uint32_t loops = (uint32_t)(option_u64(argc, argv, "--us", 500) * option_u64(argc, argv, "--loops-per-us", 1000));
	uint64_t gap_us = option_u64(argc, argv, "--gap-us", 0);
	uint64_t for_ms = option_u64(argc, argv, "--for-ms", 0);
	uint64_t capacity = option_u64(argc, argv, "--capacity", bursts * launches);
	int by_graph = strcmp(option_text(argc, argv, "--way", "stream"), "graph") == 0;
	uint64_t began, first = 0, ended;
	CUgraphExec graph = NULL;
	CUfunction kernel;
	CUstream stream;
	struct stamps s;

	open_device();
	kernel = load_kernel(argc, argv, "stamp");
	if (option_set(argc, argv, "--calibrate")) {
		printf("loops %llu\ndone\n", (unsigned long long)stamps_loops_per_us(kernel));
		return 0;
	}
	s = stamps_open(kernel, (uint32_t)capacity);
	CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	if (by_graph)
		graph = graph_of(&s, launches, loops, stream);
	stamps_say_clock(kernel);
	say_and_await("ready");
	began = now_ns();
	for (uint64_t b = 0; for_ms ? now_ns() - began < for_ms * 1000000 : b < bursts; b++) {
		if (b)
			rest(gap_us);
		if (graph)
			CU(cuGraphLaunch(graph, stream));
		else
			for (uint64_t l = 0; l < launches; l++)
				stamps_launch(&s, loops, stream);
		CU(cuStreamSynchronize(stream));
		if (!first)
			first = now_ns();
	}
	ended = now_ns();
	printf("began %llu\nfirst %llu\nended %llu\n", (unsigned long long)began, (unsigned long long)first,
	       (unsigned long long)ended);
	stamps_say_clock(kernel);
	stamps_say_all(&s);
	printf("done\n");
	return 0;
}
