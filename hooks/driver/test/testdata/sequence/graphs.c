/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs made by hand. Each has memory of its own and a stream of its own; its
 * nodes are one behind the other, since what they do to the memory would depend
 * on their order otherwise.
 */
#include "sequence.h"

#define GRAPHS 2
#define NODES  16

struct graph {
	CUgraph graph;
	CUgraphExec exec;
	CUgraphNode node[NODES];
	CUgraphNodeType type[NODES];
	unsigned n;
	int home;
	CUdeviceptr at;
	CUdeviceptr lasting;       /* of an allocation that no node frees */
	CUevent event;
	unsigned called;
	unsigned host[WORDS];
};

struct graphs {
	struct graph graph[GRAPHS];
};

static int number(struct thread *t, const struct graph *g)
{
	return (int)(g - t->graphs->graph);
}

static CUDA_KERNEL_NODE_PARAMS fill_of(struct thread *t, void **args, unsigned blocks)
{
	return (CUDA_KERNEL_NODE_PARAMS){ .func = t->fill, .gridDimX = blocks, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 128, .blockDimY = 1,
					  .blockDimZ = 1, .kernelParams = args };
}

static CUDA_MEMSET_NODE_PARAMS set_of(struct thread *t, const struct graph *g)
{
	return (CUDA_MEMSET_NODE_PARAMS){ .dst = g->at + 4 * pick(t, 8), .value = pick(t, 1000), .elementSize = 4, .width = 1 + pick(t, 400),
					  .height = 1 };
}

static void on_host(void *arg)
{
	struct graph *g = arg;

	g->called++;
}

/* Puts a new node behind the last one. */
static void added(struct thread *t, struct graph *g, CUgraphNode node, CUgraphNodeType type, CUresult r)
{
	note(t, r, "add a node of type %d to graph %d", (int)type, number(t, g));
	if (r != CUDA_SUCCESS)
		return;
	g->node[g->n] = node;
	g->type[g->n++] = type;
}

static void add_copy(struct thread *t, struct graph *g, const CUgraphNode *after, unsigned n)
{
	CUDA_MEMCPY3D p = { .srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = g->at, .dstMemoryType = CU_MEMORYTYPE_DEVICE,
			    .dstDevice = g->at + 1024, .WidthInBytes = 1 + pick(t, 1024), .Height = 1, .Depth = 1 };
	CUgraphNode node = NULL;
	CUresult r;

	if (chance(t, 50)) {
		p.dstMemoryType = CU_MEMORYTYPE_HOST;
		p.dstHost = g->host;
	}
	r = cuGraphAddMemcpyNode(&node, g->graph, after, n, &p, t->context);
	added(t, g, node, CU_GRAPH_NODE_TYPE_MEMCPY, r);
}

static void add_child(struct thread *t, struct graph *g, const CUgraphNode *after, unsigned n)
{
	CUDA_MEMSET_NODE_PARAMS m = set_of(t, g);
	CUgraphNode node = NULL, inner;
	CUgraph child;
	CUresult r;

	if (note(t, cuGraphCreate(&child, 0), "cuGraphCreate of a child") != CUDA_SUCCESS)
		return;
	note(t, cuGraphAddMemsetNode(&inner, child, NULL, 0, &m, t->context), "add a node to a child");
	r = cuGraphAddChildGraphNode(&node, g->graph, after, n, child);
	added(t, g, node, CU_GRAPH_NODE_TYPE_GRAPH, r);
	note(t, cuGraphDestroy(child), "cuGraphDestroy of a child");
}

/* Memory that is there from here to its free node, or until it is freed outside. */
static void add_memory(struct thread *t, struct graph *g, const CUgraphNode *after, unsigned n)
{
	CUDA_MEM_ALLOC_NODE_PARAMS a = { .poolProps = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
							.location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device } },
					 .bytesize = chance(t, 90) ? CHUNK : (size_t)1 << 50 };
	CUDA_MEMSET_NODE_PARAMS m = { .value = 3, .elementSize = 4, .width = WORDS, .height = 1 };
	CUgraphNode node = NULL;
	CUresult r;

	if (g->n + 3 > NODES)
		return;
	r = cuGraphAddMemAllocNode(&node, g->graph, after, n, &a);
	added(t, g, node, CU_GRAPH_NODE_TYPE_MEM_ALLOC, r);
	if (r != CUDA_SUCCESS)
		return;
	m.dst = a.dptr;
	r = cuGraphAddMemsetNode(&node, g->graph, &g->node[g->n - 1], 1, &m, t->context);
	added(t, g, node, CU_GRAPH_NODE_TYPE_EMPTY, r); /* not one that others change */
	if (chance(t, 25) && !g->lasting) {
		g->lasting = a.dptr;
		return;
	}
	r = cuGraphAddMemFreeNode(&node, g->graph, &g->node[g->n - 1], 1, a.dptr);
	added(t, g, node, CU_GRAPH_NODE_TYPE_MEM_FREE, r);
}

static void add_any(struct thread *t, struct graph *g, const CUgraphNode *after, unsigned n)
{
	CUgraphNodeParams p = { .type = CU_GRAPH_NODE_TYPE_MEMSET };
	CUgraphNode node = NULL;
	CUresult r;

	p.memset = (CUDA_MEMSET_NODE_PARAMS_v2){ .dst = g->at, .value = pick(t, 1000), .elementSize = chance(t, 80) ? 4 : 3, .width = 8, .height = 1 };
	r = cuGraphAddNode(&node, g->graph, after, NULL, n, &p);
	added(t, g, node, CU_GRAPH_NODE_TYPE_MEMSET, r);
}

static void add(struct thread *t, struct graph *g)
{
	const CUgraphNode *after = g->n ? &g->node[g->n - 1] : NULL;
	unsigned n = g->n > 0, value = pick(t, 1000), words = WORDS;
	CUDA_KERNEL_NODE_PARAMS k = fill_of(t, (void *[]){ &g->at, &value, &words }, chance(t, 90) ? 4 : 0);
	CUDA_MEMSET_NODE_PARAMS m = set_of(t, g);
	CUDA_HOST_NODE_PARAMS h = { .fn = on_host, .userData = g };
	CUgraphNode node = NULL;
	CUresult r;

	if (g->n == NODES)
		return;
	switch (pick(t, 10)) {
	case 0:
		r = cuGraphAddKernelNode(&node, g->graph, after, n, &k);
		added(t, g, node, CU_GRAPH_NODE_TYPE_KERNEL, r);
		break;
	case 1:
		r = cuGraphAddMemsetNode(&node, g->graph, after, n, &m, t->context);
		added(t, g, node, CU_GRAPH_NODE_TYPE_MEMSET, r);
		break;
	case 2:
		add_copy(t, g, after, n);
		break;
	case 3:
		r = cuGraphAddHostNode(&node, g->graph, after, n, &h);
		added(t, g, node, CU_GRAPH_NODE_TYPE_HOST, r);
		break;
	case 4:
		r = cuGraphAddEmptyNode(&node, g->graph, after, n);
		added(t, g, node, CU_GRAPH_NODE_TYPE_EMPTY, r);
		break;
	case 5:
		add_child(t, g, after, n);
		break;
	case 6:
		r = cuGraphAddEventRecordNode(&node, g->graph, after, n, g->event);
		added(t, g, node, CU_GRAPH_NODE_TYPE_EVENT_RECORD, r);
		break;
	case 7:
		r = cuGraphAddEventWaitNode(&node, g->graph, after, n, g->event);
		added(t, g, node, CU_GRAPH_NODE_TYPE_WAIT_EVENT, r);
		break;
	case 8:
		add_memory(t, g, after, n);
		break;
	case 9:
		add_any(t, g, after, n);
		break;
	}
}

static void instantiate(struct thread *t, struct graph *g)
{
	CUDA_GRAPH_INSTANTIATE_PARAMS p = { .flags = chance(t, 50) ? CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD : 0, .hUploadStream = t->stream[g->home] };
	CUgraphExec exec = NULL;
	CUresult r;

	if (chance(t, 50)) {
		r = note(t, cuGraphInstantiate(&exec, g->graph, chance(t, 20) ? CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH : 0),
			 "cuGraphInstantiate %d", number(t, g));
	} else {
		r = t->cuGraphInstantiateWithParams_(&exec, g->graph, &p);
		note(t, r, "cuGraphInstantiateWithParams %d: %d", number(t, g), (int)p.result_out);
	}
	if (r != CUDA_SUCCESS)
		return;
	if (g->exec)
		note(t, cuGraphExecDestroy(g->exec), "cuGraphExecDestroy %d", number(t, g));
	g->exec = exec;
}

static void run(struct thread *t, struct graph *g)
{
	unsigned times = 1 + pick(t, 3);

	if (!g->exec) {
		instantiate(t, g);
		return;
	}
	if (chance(t, 20))
		note(t, t->cuGraphUpload_(g->exec, t->stream[g->home]), "cuGraphUpload %d", number(t, g));
	while (times-- > 0)
		note(t, t->cuGraphLaunch_(g->exec, t->stream[g->home]), "cuGraphLaunch of graph %d", number(t, g));
	if (chance(t, 40))
		return;
	memset(t->host, 0, CHUNK);
	note(t, t->cuMemcpyDtoHAsync_v2_(t->host, g->at, CHUNK, t->stream[g->home]), "reading graph %d", number(t, g));
	settle_stream(t, g->home);
	show(t, WORDS);
	show_words(t, g->host, WORDS);
	fprintf(t->out, "  called %u\n", g->called);
	note(t, cuEventQuery(g->event), "cuEventQuery of graph %d", number(t, g));
}

/* A node of the type, if there is one; else, or sometimes, any. */
static unsigned some_node(struct thread *t, const struct graph *g, CUgraphNodeType type)
{
	unsigned i = pick(t, g->n);

	for (unsigned k = 0; k < g->n && g->type[i] != type && chance(t, 97); k++)
		i = (i + 1) % g->n;
	return i;
}

/* Of the graph, or of what was instantiated: they are apart. */
static void change(struct thread *t, struct graph *g)
{
	unsigned value = pick(t, 1000), words = WORDS, on = 77, what = pick(t, 6), i;
	CUDA_KERNEL_NODE_PARAMS k = fill_of(t, (void *[]){ &g->at, &value, &words }, 4);
	CUDA_MEMSET_NODE_PARAMS m = set_of(t, g);
	CUresult r;

	if (!g->n)
		return;
	i = some_node(t, g, what % 2 ? CU_GRAPH_NODE_TYPE_MEMSET : CU_GRAPH_NODE_TYPE_KERNEL);
	switch (what) {
	case 0:
		if (g->type[i] != CU_GRAPH_NODE_TYPE_EMPTY)
			note(t, cuGraphKernelNodeSetParams(g->node[i], &k), "cuGraphKernelNodeSetParams %u of %d", i, number(t, g));
		break;
	case 1:
		if (g->type[i] != CU_GRAPH_NODE_TYPE_EMPTY)
			note(t, cuGraphMemsetNodeSetParams(g->node[i], &m), "cuGraphMemsetNodeSetParams %u of %d", i, number(t, g));
		break;
	case 2:
		if (g->exec && g->type[i] != CU_GRAPH_NODE_TYPE_EMPTY)
			note(t, cuGraphExecKernelNodeSetParams(g->exec, g->node[i], &k), "cuGraphExecKernelNodeSetParams %u of %d", i, number(t, g));
		break;
	case 3:
		if (g->exec && g->type[i] != CU_GRAPH_NODE_TYPE_EMPTY)
			note(t, cuGraphExecMemsetNodeSetParams(g->exec, g->node[i], &m, t->context), "cuGraphExecMemsetNodeSetParams %u of %d", i,
			     number(t, g));
		break;
	case 4:
		if (g->exec)
			note(t, cuGraphNodeSetEnabled(g->exec, g->node[i], pick(t, 2)), "cuGraphNodeSetEnabled %u of %d", i, number(t, g));
		break;
	case 5:
		if (!g->exec)
			return;
		r = cuGraphNodeGetEnabled(g->exec, g->node[i], &on);
		note(t, r, "cuGraphNodeGetEnabled %u of %d: %u", i, number(t, g), on);
		break;
	}
}

static void update(struct thread *t, struct graph *g)
{
	CUgraphExecUpdateResultInfo why = { .result = 77 };
	CUresult r;

	if (!g->exec)
		return;
	r = cuGraphExecUpdate(g->exec, g->graph, &why);
	note(t, r, "cuGraphExecUpdate %d: %d", number(t, g), (int)why.result);
}

static void copy_of(struct thread *t, struct graph *g)
{
	CUgraphNode found;
	CUgraph other;

	if (note(t, cuGraphClone(&other, g->graph), "cuGraphClone %d", number(t, g)) != CUDA_SUCCESS)
		return;
	if (g->n)
		note(t, cuGraphNodeFindInClone(&found, g->node[pick(t, g->n)], other), "cuGraphNodeFindInClone of %d", number(t, g));
	note(t, cuGraphDestroy(other), "cuGraphDestroy of a clone");
}

static void shape(struct thread *t, struct graph *g)
{
	size_t nodes = 0, edges = 0, roots = 0;
	CUgraphNodeType type = 77;
	CUresult r = cuGraphGetNodes(g->graph, NULL, &nodes);

	note(t, r, "cuGraphGetNodes %d: %zu", number(t, g), nodes);
	r = cuGraphGetEdges(g->graph, NULL, NULL, NULL, &edges);
	note(t, r, "cuGraphGetEdges %d: %zu", number(t, g), edges);
	r = cuGraphGetRootNodes(g->graph, NULL, &roots);
	note(t, r, "cuGraphGetRootNodes %d: %zu", number(t, g), roots);
	if (!g->n)
		return;
	r = cuGraphNodeGetType(g->node[g->n - 1], &type);
	note(t, r, "cuGraphNodeGetType of %d: %d", number(t, g), (int)type);
	if (g->n > 1) /* a cycle */
		note(t, cuGraphAddDependencies(g->graph, &g->node[g->n - 1], &g->node[0], NULL, 1), "cuGraphAddDependencies of %d", number(t, g));
}

/* The last one, so that the others stay a line. */
static void take_out(struct thread *t, struct graph *g)
{
	if (!g->n)
		return;
	if (note(t, cuGraphDestroyNode(g->node[g->n - 1]), "cuGraphDestroyNode of %d", number(t, g)) == CUDA_SUCCESS)
		g->n--;
}

static void free_lasting(struct thread *t, struct graph *g)
{
	if (!g->lasting)
		return;
	if (chance(t, 50))
		note(t, t->cuMemFreeAsync_(g->lasting, t->stream[g->home]), "cuMemFreeAsync of memory of graph %d", number(t, g));
	else if (settle_stream(t, g->home))
		note(t, cuMemFree(g->lasting), "cuMemFree of memory of graph %d", number(t, g));
}

static void forget(struct thread *t, struct graph *g)
{
	if (!settle_stream(t, g->home))
		return;
	if (g->lasting)
		note(t, cuMemFree(g->lasting), "cuMemFree of memory of graph %d", number(t, g));
	if (g->exec)
		note(t, cuGraphExecDestroy(g->exec), "cuGraphExecDestroy of graph %d", number(t, g));
	note(t, cuGraphDestroy(g->graph), "cuGraphDestroy %d", number(t, g));
	g->graph = NULL;
	g->exec = NULL;
	g->lasting = 0;
	g->n = 0;
}

static void start(struct thread *t, struct graph *g)
{
	if (!g->at) {
		g->home = (int)pick(t, 2);
		note(t, cuMemAlloc(&g->at, CHUNK), "memory of graph %d", number(t, g));
		note(t, cuEventCreate(&g->event, CU_EVENT_DISABLE_TIMING), "event of graph %d", number(t, g));
		note(t, t->cuMemsetD32Async_(g->at, 1, WORDS, t->stream[g->home]), "first set of graph %d", number(t, g));
	}
	if (note(t, cuGraphCreate(&g->graph, 0), "cuGraphCreate %d", number(t, g)) != CUDA_SUCCESS)
		g->graph = NULL;
}

void graphs(struct thread *t)
{
	struct graph *g;

	if (!t->graphs)
		t->graphs = state_of(sizeof(*t->graphs));
	g = &t->graphs->graph[pick(t, GRAPHS)];
	if (t->capturing >= 0)
		return;
	if (!g->graph) {
		start(t, g);
		return;
	}
	switch (pick(t, 14)) {
	case 0:
	case 1:
	case 2:
	case 3:
		add(t, g);
		break;
	case 4:
		instantiate(t, g);
		break;
	case 5:
	case 6:
		run(t, g);
		break;
	case 7:
		change(t, g);
		break;
	case 8:
		update(t, g);
		break;
	case 9:
		copy_of(t, g);
		break;
	case 10:
		shape(t, g);
		break;
	case 11:
		take_out(t, g);
		break;
	case 12:
		free_lasting(t, g);
		break;
	case 13:
		if (chance(t, 40))
			forget(t, g);
		break;
	}
}
