/* SPDX-License-Identifier: Apache-2.0 */
/* Capture, graphs, and what may not be called meanwhile. */
#include <pthread.h>

#include "test.h"

static CUfunction spin, fill;
static CUdeviceptr word;
static CUstream s, t;
static unsigned value;
static int hosts;

static void on_host(void *data)
{
	(void)data;
	hosts++;
}

static void put(CUstream on, unsigned v)
{
	launch(fill, on, 1, 1, ARGS(&word, &v, &(unsigned){ 1 }));
}

static unsigned get(void)
{
	OK(cuMemcpyDtoH(&value, word, 4));
	return value;
}

static CUstreamCaptureStatus status(CUstream of)
{
	CUstreamCaptureStatus st;

	OK(cuStreamIsCapturing(of, &st));
	return st;
}

/* What is captured does not run; the graph runs it, in order, as often as it is launched. */
static void capture_and_launch(void)
{
	CUgraph g;
	CUgraphExec x;
	CUevent fork, join;
	size_t n = 0;

	OK(cuEventCreate(&fork, CU_EVENT_DISABLE_TIMING));
	OK(cuEventCreate(&join, CU_EVENT_DISABLE_TIMING));
	put(NULL, 1);
	OK(cuCtxSynchronize());
	OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	CHECK(status(s) == CU_STREAM_CAPTURE_STATUS_ACTIVE && status(t) == CU_STREAM_CAPTURE_STATUS_NONE);
	put(s, 2);
	OK(cuEventRecord(fork, s));
	OK(cuStreamWaitEvent(t, fork, 0)); /* t becomes part of it */
	CHECK(status(t) == CU_STREAM_CAPTURE_STATUS_ACTIVE);
	launch(spin, t, 1, 1, ARGS(&(unsigned){ 5000 }));
	OK(cuLaunchHostFunc(t, on_host, NULL));
	OK(cuMemsetD32Async(word, 3, 1, t));
	OK(cuEventRecord(join, t));
	OK(cuStreamWaitEvent(s, join, 0));
	put(s, 4);
	OK(cuStreamEndCapture(s, &g));
	CHECK(status(s) == CU_STREAM_CAPTURE_STATUS_NONE && status(t) == CU_STREAM_CAPTURE_STATUS_NONE);
	OK(cuGraphGetNodes(g, NULL, &n));
	CHECK(n == 5);
	CHECK(get() == 1 && hosts == 0);
	OK(cuGraphInstantiateWithFlags(&x, g, 0));
	OK(cuGraphDestroy(g));
	for (int i = 1; i <= 3; i++) {
		put(s, 9);
		OK(cuGraphLaunch(x, s));
		OK(cuStreamSynchronize(s));
		CHECK(get() == 4 && hosts == i);
	}
	/* Destroyed while it runs. */
	OK(cuGraphLaunch(x, s));
	OK(cuGraphExecDestroy(x));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(x, s));
	OK(cuStreamSynchronize(s));
	CHECK(hosts == 4);
	OK(cuEventDestroy(fork));
	OK(cuEventDestroy(join));
}

static void begin_capture(void)
{
	OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
}

static void end_invalid(void)
{
	CUgraph g = (CUgraph)1;

	GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuStreamEndCapture(s, &g));
	CHECK(g == NULL && status(s) == CU_STREAM_CAPTURE_STATUS_NONE);
}

static void forbidden(void)
{
	CUdeviceptr p;
	CUevent e;
	CUgraph g;

	OK(cuEventCreate(&e, CU_EVENT_DEFAULT));
	GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamBeginCapture(NULL, CU_STREAM_CAPTURE_MODE_GLOBAL));
	GIVES(CUDA_ERROR_ILLEGAL_STATE, cuStreamEndCapture(s, &g));

	begin_capture();
	GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamSynchronize(s));
	GIVES(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED, cuMemsetD32Async(word, 0, 1, s));
	end_invalid();

	begin_capture();
	GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuStreamQuery(s));
	end_invalid();

	begin_capture();
	GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuCtxSynchronize());
	end_invalid();

	begin_capture();
	GIVES(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, cuMemAlloc(&p, 64));
	end_invalid();

	begin_capture(); /* s is a blocking stream */
	GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, cuMemcpyDtoH(&value, word, 4));
	end_invalid();

	begin_capture();
	GIVES(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
	      cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, NULL, ARGS(&(unsigned){ 1 }), NULL));
	end_invalid();

	OK(cuEventRecord(e, t));
	begin_capture();
	GIVES(CUDA_ERROR_STREAM_CAPTURE_ISOLATION, cuStreamWaitEvent(s, e, 0));
	end_invalid();

	begin_capture();
	OK(cuEventRecord(e, s));
	GIVES(CUDA_ERROR_CAPTURED_EVENT, cuEventQuery(e));
	OK(cuStreamWaitEvent(t, e, 0));
	put(t, 1);
	GIVES(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED, cuStreamEndCapture(t, &g));
	end_invalid();

	begin_capture();
	OK(cuEventRecord(e, s));
	OK(cuStreamWaitEvent(t, e, 0));
	put(t, 1);
	GIVES(CUDA_ERROR_STREAM_CAPTURE_UNJOINED, cuStreamEndCapture(s, &g));
	CHECK(status(t) == CU_STREAM_CAPTURE_STATUS_NONE);
	OK(cuEventDestroy(e));
}

/* A helper thread that says RELAXED may do what others may not. */
static void *helper(void *arg)
{
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	CUdeviceptr p;

	OK(cuCtxSetCurrent(arg));
	OK(cuThreadExchangeStreamCaptureMode(&mode));
	CHECK(mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
	OK(cuMemAlloc(&p, 64));
	return NULL;
}

static void by_hand(CUcontext ctx)
{
	CUgraph g;
	CUgraphExec x;
	CUgraphNode a, b;
	CUDA_KERNEL_NODE_PARAMS k = { .func = fill, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1,
				      .blockDimY = 1, .blockDimZ = 1,
				      .kernelParams = ARGS(&word, &(unsigned){ 11 }, &(unsigned){ 1 }) };
	CUDA_MEMSET_NODE_PARAMS m = { .dst = word, .value = 12, .elementSize = 4, .width = 1, .height = 1 };

	OK(cuGraphCreate(&g, 0));
	OK(cuGraphAddMemsetNode(&a, g, NULL, 0, &m, ctx));
	OK(cuGraphAddKernelNode(&b, g, &a, 1, &k));
	OK(cuGraphInstantiate(&x, g, 0));
	OK(cuGraphLaunch(x, s));
	OK(cuStreamSynchronize(s));
	CHECK(get() == 11);
	OK(cuGraphExecDestroy(x));
	OK(cuGraphDestroy(g));
}

int main(int argc, char **argv)
{
	CUcontext ctx = begin(argc, argv, 0);
	pthread_t th;
	CUgraph g;

	spin = function("spin_us");
	fill = function("fill_u32");
	OK(cuMemAlloc(&word, 4));
	OK(cuStreamCreate(&s, CU_STREAM_DEFAULT));
	OK(cuStreamCreate(&t, CU_STREAM_DEFAULT));
	capture_and_launch();
	forbidden();
	begin_capture();
	pthread_create(&th, NULL, helper, ctx);
	pthread_join(th, NULL);
	OK(cuStreamEndCapture(s, &g));
	OK(cuGraphDestroy(g));
	by_hand(ctx);
	/* A context that goes takes its captures along. */
	begin_capture();
	OK(cuStreamDestroy(s));
	return 0;
}
