/* SPDX-License-Identifier: Apache-2.0 */
/* launch_paths WAY: work by one of the ways there are. */
#include "trap.h"

static CUstream stream;
static CUgraphExec graph;
static CUdeviceptr memory;
static void *arguments[] = { &(unsigned){ 50 } };

#define SHAPE 1, 1, 1, 1, 1, 1, 0

static void explicit_stream(void) { OK(cuLaunchKernel(spin, SHAPE, stream, arguments, NULL)); }
static void legacy(void) { OK(cuLaunchKernel(spin, SHAPE, NULL, arguments, NULL)); }
static void legacy_handle(void) { OK(cuLaunchKernel(spin, SHAPE, CU_STREAM_LEGACY, arguments, NULL)); }
static void per_thread(void) { OK(cuLaunchKernel_ptsz(spin, SHAPE, NULL, arguments, NULL)); }
static void per_thread_handle(void) { OK(cuLaunchKernel(spin, SHAPE, CU_STREAM_PER_THREAD, arguments, NULL)); }

static const CUlaunchConfig *config(CUstream s)
{
	static CUlaunchConfig c;

	c = (CUlaunchConfig){ .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1, .blockDimZ = 1,
			      .hStream = s };
	return &c;
}

static void ex(void) { OK(cuLaunchKernelEx(config(stream), spin, arguments, NULL)); }
static void ex_legacy(void) { OK(cuLaunchKernelEx(config(NULL), spin, arguments, NULL)); }
static void ex_per_thread(void) { OK(cuLaunchKernelEx_ptsz(config(NULL), spin, arguments, NULL)); }
static void cooperative(void) { OK(cuLaunchCooperativeKernel(spin, SHAPE, stream, arguments)); }
static void cooperative_per_thread(void) { OK(cuLaunchCooperativeKernel_ptsz(spin, SHAPE, NULL, arguments)); }

static void on_many_devices(void)
{
	CUDA_LAUNCH_PARAMS list[] = { { spin, SHAPE, stream, arguments } };

	OK(cuLaunchCooperativeKernelMultiDevice(list, 1, 0));
}

/* As before CUDA 4. */
static void prepare(void)
{
	OK(cuFuncSetBlockShape(spin, 1, 1, 1));
	OK(cuParamSeti(spin, 0, 50));
	OK(cuParamSetSize(spin, 4));
}

static void prepared_block(void)
{
	prepare();
	OK(cuLaunch(spin));
}

static void prepared_grid(void)
{
	prepare();
	OK(cuLaunchGrid(spin, 1, 1));
}

static void prepared_grid_on_a_stream(void)
{
	prepare();
	OK(cuLaunchGridAsync(spin, 1, 1, stream));
}

static void of_a_graph(void) { OK(cuGraphLaunch(graph, stream)); }
static void of_a_graph_legacy(void) { OK(cuGraphLaunch(graph, NULL)); }
static void of_a_graph_per_thread(void) { OK(cuGraphLaunch_ptsz(graph, NULL)); }

static void *address(const char *name, cuuint64_t flags)
{
	void *p = NULL;

	OK(cuGetProcAddress_v2(name, &p, 13000, flags, NULL));
	return p;
}

static void resolved(void)
{
	__typeof__(&cuLaunchKernel) f = (__typeof__(f))address("cuLaunchKernel", CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);

	OK(f(spin, SHAPE, NULL, arguments, NULL));
}

static void resolved_graph(void)
{
	__typeof__(&cuGraphLaunch) f = (__typeof__(f))address("cuGraphLaunch", CU_GET_PROC_ADDRESS_LEGACY_STREAM);

	OK(f(graph, NULL));
}

static void set(void) { OK(cuMemsetD32Async(memory, 7, 64, stream)); }
static void copy(void) { OK(cuMemcpyDtoDAsync(memory + 256, memory, 256, NULL)); }

static const struct test paths[] = {
	{ "explicit stream", explicit_stream },
	{ "legacy default stream", legacy },
	{ "legacy default stream by its handle", legacy_handle },
	{ "per-thread default stream", per_thread },
	{ "per-thread default stream by its handle", per_thread_handle },
	{ "Ex", ex },
	{ "Ex on the legacy default stream", ex_legacy },
	{ "Ex on the per-thread default stream", ex_per_thread },
	{ "cooperative", cooperative },
	{ "cooperative on the per-thread default stream", cooperative_per_thread },
	{ "cooperative on a list of devices", on_many_devices },
	{ "prepared block", prepared_block },
	{ "prepared grid", prepared_grid },
	{ "prepared grid on a stream", prepared_grid_on_a_stream },
	{ "graph", of_a_graph },
	{ "graph on the legacy default stream", of_a_graph_legacy },
	{ "graph on the per-thread default stream", of_a_graph_per_thread },
	{ "launch by cuGetProcAddress", resolved },
	{ "graph by cuGetProcAddress", resolved_graph },
	{ "set", set },
	{ "copy", copy },
	{ 0 },
};

static void instantiate(void)
{
	CUgraph captured;

	OK(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
	explicit_stream();
	OK(cuStreamEndCapture(stream, &captured));
	OK(cuGraphInstantiateWithFlags(&graph, captured, 0));
}

int main(int argc, char **argv)
{
	int r;

	begin();
	OK(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	OK(cuMemAlloc(&memory, 4096));
	instantiate();
	say("ready");
	await();
	r = run_test(paths, argc, argv);
	OK(cuCtxSynchronize());
	say("over");
	await();
	return r;
}
