/* SPDX-License-Identifier: Apache-2.0 */
/* Event nodes: others wait for a part of a graph, a part of a graph waits for others. */
#include "test.h"

static CUdeviceptr word;
static CUstream s, t;

static unsigned get(void)
{
	unsigned v;

	OK(cuMemcpyDtoHAsync(&v, word, 4, t));
	OK(cuStreamSynchronize(t));
	return v;
}

static CUgraphNode set(CUgraph g, const CUgraphNode *after, unsigned value)
{
	CUDA_MEMSET_NODE_PARAMS m = { .dst = word, .value = value, .elementSize = 4, .width = 1, .height = 1 };
	CUcontext ctx;
	CUgraphNode n;

	OK(cuCtxGetCurrent(&ctx));
	OK(cuGraphAddMemsetNode(&n, g, after, after != NULL, &m, ctx));
	return n;
}

/* The first half is over and seen, while the second waits. */
static void halves(CUevent recorded, CUevent awaited)
{
	CUgraphNode n;
	CUgraphExec x;
	CUevent got;
	CUgraph g;

	OK(cuGraphCreate(&g, 0));
	n = set(g, NULL, 1);
	OK(cuGraphAddEventRecordNode(&n, g, &n, 1, recorded));
	OK(cuGraphEventRecordNodeGetEvent(n, &got));
	CHECK(got == recorded);
	/* Not the wait for the other event keeps what is behind the record, but a value. */
	CUstreamBatchMemOpParams op = { .waitValue = { .operation = CU_STREAM_MEM_OP_WAIT_VALUE_32, .flags = CU_STREAM_WAIT_VALUE_GEQ,
						       .address = (CUdeviceptr)(uintptr_t)hold_word(), .value = 1 } };
	CUDA_BATCH_MEM_OP_NODE_PARAMS ops = { .ctx = NULL, .count = 1, .paramArray = &op };
	OK(cuCtxGetCurrent(&ops.ctx));
	OK(cuGraphAddBatchMemOpNode(&n, g, &n, 1, &ops));
	OK(cuGraphAddEventWaitNode(&n, g, &n, 1, awaited));
	n = set(g, &n, 2);
	OK(cuGraphInstantiate(&x, g, 0));

	hold(t);
	OK(cuEventRecord(awaited, t));
	OK(cuGraphLaunch(x, s));
	OK(cuEventSynchronize(recorded));
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(s));
	let_go();
	OK(cuStreamSynchronize(s));
	CHECK(get() == 2);
	/* Another stream waits for the record of the launch. */
	hold(t);
	OK(cuEventRecord(awaited, t));
	CUstream u;
	OK(cuStreamCreate(&u, CU_STREAM_NON_BLOCKING));
	OK(cuGraphLaunch(x, s));
	OK(cuStreamWaitEvent(u, recorded, 0));
	OK(cuStreamSynchronize(u));
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(s));
	let_go();
	OK(cuStreamSynchronize(s));
	/* A launch that has not begun has taken the event already. */
	hold(s);
	OK(cuGraphLaunch(x, s));
	GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(recorded));
	let_go();
	OK(cuStreamSynchronize(s));
	OK(cuEventQuery(recorded));
	OK(cuGraphExecDestroy(x));
	OK(cuGraphDestroy(g));
}

static void captured(CUevent e)
{
	CUgraphNodeType type;
	CUgraphNode nodes[4];
	size_t n = 4;
	CUgraph g;

	GIVES(CUDA_ERROR_INVALID_VALUE, cuEventRecordWithFlags(e, s, CU_EVENT_RECORD_EXTERNAL)); /* nothing is captured */
	OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuEventRecordWithFlags(e, s, CU_EVENT_RECORD_EXTERNAL));
	OK(cuStreamWaitEvent(s, e, CU_EVENT_WAIT_EXTERNAL));
	OK(cuStreamEndCapture(s, &g));
	OK(cuGraphGetNodes(g, nodes, &n));
	CHECK(n == 2);
	OK(cuGraphNodeGetType(nodes[0], &type));
	CHECK(type == CU_GRAPH_NODE_TYPE_EVENT_RECORD);
	OK(cuGraphNodeGetType(nodes[1], &type));
	CHECK(type == CU_GRAPH_NODE_TYPE_WAIT_EVENT);
	OK(cuGraphDestroy(g));
}

int main(int argc, char **argv)
{
	CUevent a, b;

	begin(argc, argv, 0);
	OK(cuMemAlloc(&word, 4));
	OK(cuEventCreate(&a, CU_EVENT_DISABLE_TIMING));
	OK(cuEventCreate(&b, CU_EVENT_DISABLE_TIMING));
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&t, CU_STREAM_NON_BLOCKING));
	halves(a, b);
	captured(a);
	return 0;
}
