/* SPDX-License-Identifier: Apache-2.0 */
/* Changes of executable graphs: for what is launched after, and only if the shape is the same. */
#include "test.h"

static CUdeviceptr word;
static CUstream s;

static CUDA_MEMSET_NODE_PARAMS set_to(unsigned value)
{
	return (CUDA_MEMSET_NODE_PARAMS){ .dst = word, .value = value, .elementSize = 4, .width = 1, .height = 1 };
}

static unsigned run(CUgraphExec x)
{
	unsigned v;

	OK(cuMemsetD32(word, 0, 1));
	OK(cuCtxSynchronize());
	OK(cuGraphLaunch(x, s));
	OK(cuStreamSynchronize(s));
	OK(cuMemcpyDtoH(&v, word, 4));
	return v;
}

static CUgraph graph(unsigned value, CUgraphNode *n, CUcontext ctx)
{
	CUDA_MEMSET_NODE_PARAMS m = set_to(value);
	CUgraph g;

	OK(cuGraphCreate(&g, 0));
	OK(cuGraphAddMemsetNode(n, g, NULL, 0, &m, ctx));
	return g;
}

int main(int argc, char **argv)
{
	CUcontext ctx = begin(argc, argv, 0);
	CUgraphExecUpdateResultInfo why;
	CUDA_MEMSET_NODE_PARAMS m;
	CUgraphNode n, other, empty;
	CUgraphExec x;
	CUgraph g, h;
	unsigned on;

	OK(cuMemAlloc(&word, 64));
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	g = graph(1, &n, ctx);
	OK(cuGraphInstantiate(&x, g, 0));

	/* The graph's own nodes are not the executable graph's. */
	m = set_to(2);
	OK(cuGraphMemsetNodeSetParams(n, &m));
	CHECK(run(x) == 1);
	m = set_to(3);
	OK(cuGraphExecMemsetNodeSetParams(x, n, &m, ctx));
	CHECK(run(x) == 3);
	OK(cuGraphMemsetNodeGetParams(n, &m));
	CHECK(m.value == 2);

	/* What is on its way stays as it was submitted. */
	hold(s);
	OK(cuGraphLaunch(x, s));
	m = set_to(4);
	OK(cuGraphExecMemsetNodeSetParams(x, n, &m, ctx));
	let_go();
	OK(cuStreamSynchronize(s));
	OK(cuMemcpyDtoH(&on, word, 4));
	CHECK(on == 3);
	CHECK(run(x) == 4);

	OK(cuGraphNodeSetEnabled(x, n, 0));
	OK(cuGraphNodeGetEnabled(x, n, &on));
	CHECK(!on && run(x) == 0);
	OK(cuGraphNodeSetEnabled(x, n, 1));
	CHECK(run(x) == 4);

	h = graph(5, &other, ctx);
	OK(cuGraphExecUpdate(x, h, &why));
	CHECK(why.result == CU_GRAPH_EXEC_UPDATE_SUCCESS && run(x) == 5);
	/* The nodes are still named as those of the first graph. */
	m = set_to(6);
	OK(cuGraphExecMemsetNodeSetParams(x, n, &m, ctx));
	CHECK(run(x) == 6);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphExecMemsetNodeSetParams(x, other, &m, ctx));

	OK(cuGraphAddEmptyNode(&empty, h, &other, 1));
	GIVES(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(x, h, &why));
	CHECK(why.result == CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED && run(x) == 6);
	OK(cuGraphDestroy(h));
	OK(cuGraphCreate(&h, 0));
	OK(cuGraphAddEmptyNode(&empty, h, NULL, 0));
	GIVES(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE, cuGraphExecUpdate(x, h, &why));
	CHECK(why.result == CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED && why.errorNode == empty);
	return 0;
}
