/* SPDX-License-Identifier: Apache-2.0 */
/*
 * costs: what calls cost the thread that makes them. Prints "cost NAME PS SAMPLES":
 * the median of rounds, each a mean, in picoseconds. In turns, so that a noisy
 * machine is noisy for all. "add" is one uncontended locked add.
 *
 *   costs [--rounds N] [--kernels DIR]
 */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>

#define CALLS 100 /* of a round; less than any queue holds */

static CUfunction spin;
static CUstream stream, other;
static CUevent event;
static CUdeviceptr word;
static CUgraphExec graph;
static unsigned long counter;

static void add(void) { __atomic_fetch_add(&counter, 1, __ATOMIC_SEQ_CST); }
static void launch(void) { launch_spin(spin, 0, stream); }
static void launch_legacy(void) { launch_spin(spin, 0, NULL); }
static void launch_and_wait(void) { launch_spin(spin, 0, stream); CU(cuStreamSynchronize(stream)); }
static void launch_graph(void) { CU(cuGraphLaunch(graph, stream)); }
static void record(void) { CU(cuEventRecord(event, stream)); }
static void query_event(void) { (void)cuEventQuery(event); }
static void query_stream(void) { (void)cuStreamQuery(stream); }
static void wait_event(void) { CU(cuStreamWaitEvent(other, event, 0)); }
static void write_value(void) { CU(cuStreamWriteValue32(stream, word, 1, 0)); }
static void set(void) { CU(cuMemsetD32Async(word, 1, 1, stream)); }

static void nothing(void *unused) { (void)unused; }
static void host_function(void) { CU(cuLaunchHostFunc(stream, nothing, NULL)); }

static void allocate(void)
{
	CUdeviceptr p;

	CU(cuMemAlloc(&p, 1 << 20));
	CU(cuMemFree(p));
}

static void allocate_async(void)
{
	CUdeviceptr p;

	CU(cuMemAllocAsync(&p, 1 << 20, stream));
	CU(cuMemFreeAsync(p, stream));
}

static const struct {
	const char *name;
	void (*call)(void);
	int calls;
} costs[] = {
	{ "add", add, 10000 },
	{ "launch", launch, CALLS },
	{ "launch_legacy", launch_legacy, CALLS },
	{ "launch_and_wait", launch_and_wait, 20 },
	{ "graph_launch", launch_graph, 20 },
	{ "event_record", record, CALLS },
	{ "event_query", query_event, CALLS },
	{ "stream_query", query_stream, CALLS },
	{ "stream_wait_event", wait_event, CALLS },
	{ "write_value", write_value, CALLS },
	{ "set", set, CALLS },
	{ "host_function", host_function, CALLS },
	{ "alloc_and_free", allocate, 20 },
	{ "alloc_and_free_async", allocate_async, 20 },
};
#define COSTS (sizeof(costs) / sizeof(costs[0]))

static void prepare(void)
{
	CUgraph captured;

	CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CU(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
	CU(cuMemAlloc(&word, 4096));
	CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	for (int i = 0; i < 10; i++)
		launch();
	CU(cuStreamEndCapture(stream, &captured));
	CU(cuGraphInstantiateWithFlags(&graph, captured, 0));
	CU(cuCtxSynchronize());
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

int main(int argc, char **argv)
{
	uint64_t rounds = option_u64(argc, argv, "--rounds", 30);
	uint64_t *ps = calloc(COSTS * (rounds + 1), sizeof(*ps));

	if (!ps || !rounds)
		fail("--rounds must be 1 or more");
	open_device();
	spin = load_kernel(argc, argv, "spin_us");
	prepare();
	for (uint64_t r = 0; r <= rounds; r++) { /* the first one warms up */
		for (size_t c = 0; c < COSTS; c++) {
			uint64_t from = now_ns();

			for (int i = 0; i < costs[c].calls; i++)
				costs[c].call();
			ps[c * (rounds + 1) + r] = (now_ns() - from) * 1000 / (uint64_t)costs[c].calls;
			CU(cuCtxSynchronize());
		}
	}
	for (size_t c = 0; c < COSTS; c++) {
		uint64_t *own = ps + c * (rounds + 1) + 1;

		qsort(own, rounds, sizeof(*own), by_size);
		printf("cost %s %llu %llu\n", costs[c].name, (unsigned long long)own[rounds / 2], (unsigned long long)rounds);
	}
	printf("done\n");
	return 0;
}
