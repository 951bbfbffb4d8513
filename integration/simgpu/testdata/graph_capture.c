/* SPDX-License-Identifier: Apache-2.0 */
/* Capture into a graph that is there, and steering what comes next. */
#include "test.h"

int main(int argc, char **argv)
{
	CUgraphNode set, got[4];
	const CUgraphNode *deps;
	CUstreamCaptureStatus status;
	CUgraphExec inner;
	CUdeviceptr p;
	CUgraph g, h, in_capture;
	CUstream s;
	size_t n;
	cuuint64_t id;
	CUcontext ctx = begin(argc, argv, 0);

	OK(cuMemAlloc(&p, 64));
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	CUDA_MEMSET_NODE_PARAMS m = { .dst = p, .value = 1, .elementSize = 4, .width = 1, .height = 1 };
	OK(cuGraphCreate(&g, 0));
	OK(cuGraphAddMemsetNode(&set, g, NULL, 0, &m, ctx));

	OK(cuStreamBeginCaptureToGraph(s, g, &set, NULL, 1, CU_STREAM_CAPTURE_MODE_GLOBAL));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(g)); /* it is the capture's now */
	OK(cuMemsetD32Async(p + 4, 2, 1, s));
	OK(cuStreamGetCaptureInfo(s, &status, &id, &in_capture, &deps, NULL, &n));
	CHECK(status == CU_STREAM_CAPTURE_STATUS_ACTIVE && in_capture == g && n == 1 && deps[0] != set);
	CUgraphNode last = deps[0];
	/* As if the last one had not been: the next depends on the first alone. */
	OK(cuStreamUpdateCaptureDependencies(s, &set, NULL, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));
	OK(cuMemsetD32Async(p + 8, 3, 1, s));
	OK(cuStreamUpdateCaptureDependencies(s, &last, NULL, 1, CU_STREAM_ADD_CAPTURE_DEPENDENCIES));
	OK(cuStreamGetCaptureInfo(s, &status, &id, &in_capture, &deps, NULL, &n));
	CHECK(n == 2);
	OK(cuStreamEndCapture(s, &h));
	CHECK(h == g);
	n = 4;
	OK(cuGraphNodeGetDependentNodes(set, got, NULL, &n));
	CHECK(n == 2);
	GIVES(CUDA_ERROR_ILLEGAL_STATE, cuStreamUpdateCaptureDependencies(s, &set, NULL, 1, CU_STREAM_SET_CAPTURE_DEPENDENCIES));

	/* A launch that is captured is a child graph. */
	CUgraphNodeType type;
	OK(cuGraphInstantiate(&inner, g, 0));
	OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuGraphLaunch(inner, s));
	OK(cuStreamEndCapture(s, &h));
	n = 4;
	OK(cuGraphGetNodes(h, got, &n));
	CHECK(n == 1);
	OK(cuGraphNodeGetType(got[0], &type));
	CHECK(type == CU_GRAPH_NODE_TYPE_GRAPH);
	return 0;
}
