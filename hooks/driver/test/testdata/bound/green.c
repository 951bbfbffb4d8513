/* SPDX-License-Identifier: Apache-2.0 */
/* A green context ends, or the primary context in which it is, while work is in flight. */
#include "bound.h"

static CUdevice dev;
static CUgreenCtx green;
static CUcontext context;
static CUfunction spin;

static void make(void)
{
	CUdevResource all, part, rest;
	CUdevResourceDesc desc;
	unsigned n = 1;

	OK(cuDeviceGetDevResource(dev, &all, CU_DEV_RESOURCE_TYPE_SM));
	OK(cuDevSmResourceSplitByCount(&part, &n, &all, &rest, 0, 8));
	OK(cuDevResourceGenerateDesc(&desc, &part, 1));
	OK(cuGreenCtxCreate(&green, desc, dev, CU_GREEN_CTX_DEFAULT_STREAM));
}

static CUstream stream(void)
{
	CUstream s;

	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	return s;
}

static void launch_on(CUstream s)
{
	launch(spin, s, 1, 1, ARGS(&(unsigned){ 10 }));
}

static void at_rest(CUstream s)
{
	ready();
	let_go();
	OK(cuStreamSynchronize(s));
	ready();
}

static void others(void)
{
	CUstream s = stream();

	hold(s);
	launch_on(s);
	OK(cuGreenCtxDestroy(green));
	at_rest(s);
}

static void beside_capture(void)
{
	CUstream s = stream(), captured = stream();
	CUgraph graph;

	hold(s);
	launch_on(s);
	OK(cuStreamBeginCapture(captured, CU_STREAM_CAPTURE_MODE_RELAXED));
	OK(cuGreenCtxDestroy(green));
	ready();
	launch_on(captured);
	let_go();
	OK(cuStreamSynchronize(s));
	ready();
	OK(cuStreamEndCapture(captured, &graph));
}

static void own(void)
{
	CUstream s;

	OK(cuGreenCtxStreamCreate(&s, green, CU_STREAM_NON_BLOCKING, 0));
	hold(s);
	launch_on(s);
	OK(cuGreenCtxDestroy(green));
	CHECK(cuStreamQuery(s) == CUDA_ERROR_STREAM_DETACHED);
	ready();
	let_go();
	ready();
	OK(cuStreamDestroy(s));
}

static void reset(void)
{
	OK(cuDevicePrimaryCtxReset(dev));
}

static void last(void)
{
	OK(cuGreenCtxDestroy(green));
}

/* The streams of a primary context that only the green one held go with it, and new
 * ones have their handles. */
static void again(void (*end)(void))
{
	CUstream old[64], s = NULL, t;
	CUdeviceptr p;

	OK(cuCtxFromGreenCtx(&context, green));
	OK(cuCtxSetCurrent(context));
	OK(cuMemAlloc(&p, 4));
	for (int i = 0; i < 64; i++) {
		old[i] = stream();
		OK(cuMemsetD32Async(p, 5, 1, old[i]));
	}
	OK(cuCtxSynchronize());
	end();
	OK(cuDevicePrimaryCtxRetain(&context, dev));
	OK(cuCtxSetCurrent(context));
	spin = function("spin_us");
	for (int i = 0; i < 256 && !s; i++) {
		t = stream();
		for (int k = 0; k < 64; k++)
			if (old[k] == t)
				s = t;
	}
	CHECK(s);
	hold(s);
	launch_on(s);
	at_rest(s);
}

int main(int argc, char **argv)
{
	CHECK(argc > 2);
	kernels_dir = argv[1];
	OK(cuInit(0));
	OK(cuDeviceGet(&dev, 0));
	ready();
	if (strcmp(argv[2], "reset") == 0 || strcmp(argv[2], "last") == 0) {
		make();
		again(strcmp(argv[2], "reset") == 0 ? reset : last);
		done();
		return 0;
	}
	OK(cuDevicePrimaryCtxRetain(&context, dev));
	OK(cuCtxSetCurrent(context));
	spin = function("spin_us");
	make();
	hold_word();
	launch_on(NULL);
	OK(cuCtxSynchronize());
	if (strcmp(argv[2], "others") == 0)
		others();
	else if (strcmp(argv[2], "beside-capture") == 0)
		beside_capture();
	else
		own();
	done();
	return 0;
}
