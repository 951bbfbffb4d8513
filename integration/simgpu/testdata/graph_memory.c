/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs that allocate: an address that stays, memory that is there between the alloc and the free. */
#include "test.h"

#define SIZE (4u << 20)

static CUdevice dev;
static CUcontext ctx;
static CUstream s;

static cuuint64_t attribute(CUgraphMem_attribute a)
{
	cuuint64_t v;

	OK(cuDeviceGetGraphMemAttribute(dev, a, &v));
	return v;
}

static CUgraphNode allocate(CUgraph g, CUdeviceptr *p)
{
	CUDA_MEM_ALLOC_NODE_PARAMS a = { .poolProps = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
							.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = dev } },
					 .bytesize = SIZE };
	CUgraphNode n;

	OK(cuGraphAddMemAllocNode(&n, g, NULL, 0, &a));
	CHECK(a.dptr != 0);
	*p = a.dptr;
	return n;
}

/* Allocated, written, freed by the graph itself, as often as one likes. */
static void inside(void)
{
	CUgraphNode alloc, set, copy, done;
	CUgraphExec x, second;
	CUdeviceptr p;
	CUgraph g, c;
	unsigned got = 0;

	OK(cuGraphCreate(&g, 0));
	alloc = allocate(g, &p);
	CUDA_MEMSET_NODE_PARAMS m = { .dst = p, .value = 42, .elementSize = 4, .width = SIZE / 4, .height = 1 };
	CUDA_MEMCPY3D d = { .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = p + SIZE - 4, .dstMemoryType = CU_MEMORYTYPE_HOST,
			    .dstHost = &got, .WidthInBytes = 4, .Height = 1, .Depth = 1 };
	OK(cuGraphAddMemsetNode(&set, g, &alloc, 1, &m, ctx));
	OK(cuGraphAddMemcpyNode(&copy, g, &set, 1, &d, ctx));
	OK(cuGraphAddMemFreeNode(&done, g, &copy, 1, p));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphAddMemFreeNode(&done, g, &copy, 1, p)); /* twice */
	OK(cuGraphInstantiate(&x, g, 0));
	for (int i = 0; i < 3; i++) {
		got = 0;
		OK(cuGraphLaunch(x, s));
		OK(cuStreamSynchronize(s));
		CHECK(got == 42);
	}
	CHECK(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_HIGH) >= SIZE);
	CHECK(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) >= SIZE);
	CHECK(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 0);
	OK(cuDeviceGraphMemTrim(dev));
	CHECK(attribute(CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT) == 0);
	/* One at a time, no copies, no nodes taken out. */
	GIVES(CUDA_ERROR_NOT_SUPPORTED, cuGraphInstantiate(&second, g, 0));
	GIVES(CUDA_ERROR_NOT_SUPPORTED, cuGraphClone(&c, g));
	GIVES(CUDA_ERROR_NOT_SUPPORTED, cuGraphDestroyNode(copy));
	OK(cuGraphExecDestroy(x));
	OK(cuGraphInstantiate(&second, g, 0));
	OK(cuGraphExecDestroy(second));
	OK(cuGraphDestroy(g));
}

/* Freed by the stream behind it; a second launch before that is an error, or frees by itself. */
static void outside(void)
{
	CUgraphExec x;
	CUdeviceptr p;
	CUgraph g;

	OK(cuGraphCreate(&g, 0));
	allocate(g, &p);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(p)); /* nobody has allocated it yet */
	OK(cuGraphInstantiate(&x, g, 0));
	OK(cuGraphLaunch(x, s));
	OK(cuMemsetD8Async(p, 1, SIZE, s));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGraphLaunch(x, s));
	OK(cuMemFreeAsync(p, s));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(p, s));
	OK(cuGraphLaunch(x, s)); /* while the free is still on its way */
	OK(cuMemFree(p));
	OK(cuGraphExecDestroy(x));
	OK(cuGraphInstantiate(&x, g, CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH));
	OK(cuGraphLaunch(x, s));
	OK(cuGraphLaunch(x, s));
	OK(cuStreamSynchronize(s));
	CHECK(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) >= SIZE);
	OK(cuGraphExecDestroy(x));
	OK(cuGraphDestroy(g));
	OK(cuMemFree(p)); /* it outlives its graph */
	CHECK(attribute(CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT) == 0);
}

static void captured(void)
{
	CUgraphNodeType type;
	CUgraphNode nodes[4];
	size_t n = 4;
	CUdeviceptr p;
	CUgraphExec x;
	CUgraph g;

	OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuMemAllocAsync(&p, SIZE, s));
	OK(cuMemsetD8Async(p, 1, SIZE, s));
	OK(cuMemFreeAsync(p, s));
	OK(cuStreamEndCapture(s, &g));
	OK(cuGraphGetNodes(g, nodes, &n));
	CHECK(n == 3);
	OK(cuGraphNodeGetType(nodes[0], &type));
	CHECK(type == CU_GRAPH_NODE_TYPE_MEM_ALLOC);
	OK(cuGraphNodeGetType(nodes[2], &type));
	CHECK(type == CU_GRAPH_NODE_TYPE_MEM_FREE);
	OK(cuGraphInstantiate(&x, g, 0));
	OK(cuGraphLaunch(x, s));
	OK(cuStreamSynchronize(s));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(p));
}

int main(int argc, char **argv)
{
	ctx = begin(argc, argv, 0);
	OK(cuCtxGetDevice(&dev));
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	inside();
	outside();
	captured();
	return 0;
}
