/* SPDX-License-Identifier: Apache-2.0 */
/* stamps KERNELS: a kernel appends when it began and when it ended; in a graph too. */
#include "test.h"

enum { LOOPS = 3000000, CAPACITY = 5, LAUNCHES = 3, WORDS = 2 + 2 * CAPACITY };

static CUdeviceptr buffer;
static CUfunction f;

static void stamp(CUstream s)
{
	uint32_t capacity = CAPACITY, loops = LOOPS;

	launch(f, s, 1, 1, ARGS(&buffer, &capacity, &loops));
}

/* One after another, and none shorter than the loops: each takes some time. */
static void check(int pairs, uint64_t counted)
{
	uint64_t words[WORDS], last = 0;

	OK(cuMemcpyDtoH(words, buffer, sizeof(words)));
	CHECK(words[0] == counted);
	for (int i = 0; i < CAPACITY; i++) {
		uint64_t from = words[2 + 2 * i], to = words[3 + 2 * i];

		CHECK(i < pairs ? from >= last && to - from > LOOPS / 10 : from == 0 && to == 0);
		last = to;
	}
}

int main(int argc, char **argv)
{
	CUgraphExec exec;
	CUgraph graph;
	CUmodule m;
	CUstream s;
	char path[4096];

	begin(argc, argv, 0);
	snprintf(path, sizeof(path), "%s/stamp.ptx", kernels_dir);
	OK(cuModuleLoad(&m, path));
	OK(cuModuleGetFunction(&f, m, "stamp"));
	OK(cuMemAlloc(&buffer, WORDS * sizeof(uint64_t)));
	OK(cuMemsetD8(buffer, 0, WORDS * sizeof(uint64_t)));
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuCtxSynchronize());
	for (int i = 0; i < LAUNCHES; i++)
		stamp(s);
	OK(cuCtxSynchronize());
	check(LAUNCHES, LAUNCHES);
	OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	for (int i = 0; i < LAUNCHES; i++)
		stamp(s);
	OK(cuStreamEndCapture(s, &graph));
	OK(cuGraphInstantiateWithFlags(&exec, graph, 0));
	OK(cuGraphLaunch(exec, s));
	OK(cuCtxSynchronize());
	check(CAPACITY, 2 * LAUNCHES); /* the last one did not fit */
	return 0;
}
