/* SPDX-License-Identifier: Apache-2.0 */
/*
 * queue KERNELS KIND N US [US2]: keeps the GPU's queue full with N kernels (or
 * graphs of ten) of US microseconds, then as many of US2. KIND is where:
 *
 *   stream, legacy, streams (eight), graphs,
 *   threads (four, each on its per-thread stream), shared (four on one stream)
 */
#include <pthread.h>

#include "bound.h"

static CUcontext context;
static CUfunction spin;
static CUstream stream[8];
static CUgraphExec exec;
static const char *kind;
static unsigned n;

static void submit(CUstream s, unsigned count, unsigned us)
{
	for (unsigned i = 0; i < count; i++)
		launch(spin, s, 1, 1, ARGS(&us));
}

static void capture(unsigned us)
{
	CUgraph graph;

	OK(cuStreamBeginCapture(stream[0], CU_STREAM_CAPTURE_MODE_GLOBAL));
	submit(stream[0], 10, us);
	OK(cuStreamEndCapture(stream[0], &graph));
	OK(cuGraphInstantiate(&exec, graph, 0));
}

static void *thread(void *us)
{
	OK(cuCtxSetCurrent(context));
	submit(strcmp(kind, "threads") == 0 ? CU_STREAM_PER_THREAD : stream[0], n / 4, *(unsigned *)us);
	OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
	return NULL;
}

static void run(unsigned us)
{
	pthread_t t[4];

	if (strcmp(kind, "stream") == 0) {
		submit(stream[0], n, us);
	} else if (strcmp(kind, "legacy") == 0) {
		submit(NULL, n, us);
	} else if (strcmp(kind, "streams") == 0) {
		for (unsigned i = 0; i < n; i++)
			submit(stream[i % 8], 1, us);
	} else if (strcmp(kind, "graphs") == 0) {
		capture(us);
		for (unsigned i = 0; i < n; i++)
			OK(cuGraphLaunch(exec, stream[0]));
	} else {
		for (int i = 0; i < 4; i++)
			CHECK(pthread_create(&t[i], NULL, thread, &us) == 0);
		for (int i = 0; i < 4; i++)
			CHECK(pthread_join(t[i], NULL) == 0);
	}
}

int main(int argc, char **argv)
{
	unsigned value = 0;
	CUdeviceptr p;

	CHECK(argc > 4);
	context = begin(argc, argv, 0);
	kind = argv[2];
	n = (unsigned)atoi(argv[3]);
	spin = function("spin_us");
	CUfunction fill = function("fill_u32");
	for (int i = 0; i < 8; i++)
		OK(cuStreamCreate(&stream[i], CU_STREAM_NON_BLOCKING));
	OK(cuMemAlloc(&p, sizeof(value)));
	ready();
	for (int i = 4; i < argc; i++)
		run((unsigned)atoi(argv[i]));
	OK(cuCtxSynchronize());
	launch(fill, NULL, 1, 1, ARGS(&p, &(unsigned){ 4711 }, &(unsigned){ 1 }));
	OK(cuMemcpyDtoH(&value, p, sizeof(value)));
	CHECK(value == 4711);
	done();
	return 0;
}
