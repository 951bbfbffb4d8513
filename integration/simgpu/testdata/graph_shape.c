/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs as a shape: edges, clones, cycles, children, what they say of themselves. */
#include "test.h"

static CUcontext ctx;
static CUfunction fill;
static CUdeviceptr word;
static CUstream s;

static unsigned get(void)
{
	unsigned v;

	OK(cuMemcpyDtoH(&v, word, 4));
	return v;
}

static CUgraphNode put(CUgraph g, unsigned value)
{
	CUDA_KERNEL_NODE_PARAMS k = { .func = fill, .gridDimX = 1, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 1, .blockDimY = 1,
				      .blockDimZ = 1, .kernelParams = ARGS(&word, &value, &(unsigned){ 1 }) };
	CUgraphNode n;

	OK(cuGraphAddKernelNode(&n, g, NULL, 0, &k));
	return n;
}

static unsigned run(CUgraph g)
{
	CUgraphExec x;

	OK(cuGraphInstantiate(&x, g, 0));
	OK(cuGraphLaunch(x, s));
	OK(cuStreamSynchronize(s));
	OK(cuGraphExecDestroy(x));
	return get();
}

/* The order is that of the edges, not that in which the nodes were made. */
static void edges(void)
{
	CUgraphNode a, b, got[4], from[4], to[4];
	size_t n = 4;
	CUgraph g;

	OK(cuGraphCreate(&g, 0));
	a = put(g, 1);
	b = put(g, 2);
	OK(cuGraphGetRootNodes(g, NULL, &n));
	CHECK(n == 2);
	OK(cuGraphAddDependencies(g, &b, &a, NULL, 1)); /* first b, then a */
	CHECK(run(g) == 1);
	n = 4;
	OK(cuGraphGetRootNodes(g, got, &n));
	CHECK(n == 1 && got[0] == b && got[1] == NULL);
	n = 4;
	OK(cuGraphGetEdges(g, from, to, NULL, &n));
	CHECK(n == 1 && from[0] == b && to[0] == a);
	n = 4;
	OK(cuGraphNodeGetDependencies(a, got, NULL, &n));
	CHECK(n == 1 && got[0] == b);
	n = 4;
	OK(cuGraphNodeGetDependentNodes(b, got, NULL, &n));
	CHECK(n == 1 && got[0] == a);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(g, &b, &a, NULL, 1)); /* it is there */
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(g, &a, &b, NULL, 1)); /* a cycle */
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddDependencies(g, &a, &a, NULL, 1));
	OK(cuGraphRemoveDependencies(g, &b, &a, NULL, 1));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphRemoveDependencies(g, &b, &a, NULL, 1));
	OK(cuGraphAddDependencies(g, &a, &b, NULL, 1));
	CHECK(run(g) == 2);
	OK(cuGraphDestroyNode(b));
	CHECK(run(g) == 1);
	OK(cuGraphDestroy(g));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(g));
}

/* A clone is apart from what it was made of. */
static void clone(void)
{
	CUDA_KERNEL_NODE_PARAMS k;
	CUgraphNode n, in_clone;
	CUgraph g, c;

	OK(cuGraphCreate(&g, 0));
	n = put(g, 3);
	OK(cuGraphClone(&c, g));
	OK(cuGraphNodeFindInClone(&in_clone, n, c));
	CHECK(in_clone != n);
	OK(cuGraphKernelNodeGetParams(in_clone, &k));
	CHECK(k.func == fill && k.gridDimX == 1 && *(unsigned *)k.kernelParams[1] == 3);
	k.kernelParams = ARGS(&word, &(unsigned){ 4 }, &(unsigned){ 1 });
	OK(cuGraphKernelNodeSetParams(in_clone, &k));
	CHECK(run(g) == 3);
	OK(cuGraphDestroy(g));
	CHECK(run(c) == 4);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphNodeFindInClone(&n, in_clone, c));
	OK(cuGraphDestroy(c));
}

/* A child is a copy, in the place of its node. */
static void child(void)
{
	CUgraph outer, inner, got;
	CUgraphNode before, node;

	OK(cuGraphCreate(&outer, 0));
	OK(cuGraphCreate(&inner, 0));
	put(inner, 5);
	before = put(outer, 6);
	OK(cuGraphAddChildGraphNode(&node, outer, &before, 1, inner));
	OK(cuGraphDestroy(inner));
	OK(cuGraphChildGraphNodeGetGraph(node, &got));
	CHECK(got != inner);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphDestroy(got));
	CHECK(run(outer) == 5);
	OK(cuGraphDestroy(outer));
}

static void any(void)
{
	CUgraphNodeParams p = { .type = CU_GRAPH_NODE_TYPE_MEMSET };
	CUgraphNodeType type;
	CUgraphNode n;
	CUgraph g;

	p.memset.dst = word;
	p.memset.elementSize = 4;
	p.memset.width = p.memset.height = 1;
	p.memset.value = 7;
	OK(cuGraphCreate(&g, 0));
	OK(cuGraphAddNode(&n, g, NULL, NULL, 0, &p));
	OK(cuGraphNodeGetType(n, &type));
	CHECK(type == CU_GRAPH_NODE_TYPE_MEMSET);
	CHECK(run(g) == 7);
	p.memset.elementSize = 3;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddNode(&n, g, NULL, NULL, 0, &p));
	CUgraphNode twice[] = { n, n };
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddEmptyNode(&n, g, twice, 2));
	OK(cuGraphDestroy(g));
}

int main(int argc, char **argv)
{
	ctx = begin(argc, argv, 0);
	fill = function("fill_u32");
	OK(cuMemAlloc(&word, 4));
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	edges();
	clone();
	child();
	any();
	return 0;
}
