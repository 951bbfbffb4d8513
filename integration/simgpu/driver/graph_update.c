/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Changes of executable graphs. They hold for the launches that come; those on
 * their way keep the program that they were submitted with.
 */
#include <string.h>

#include "graph.h"

/* The executable graph's own copy of a node of the graph that it was made from. */
static CUresult find(CUgraphExec hx, CUgraphNode hn, struct exec **x, struct node **copy)
{
	const struct node *n = handle_get_locked(hn, KIND_NODE);

	*x = handle_get_locked(hx, KIND_EXEC);
	if (!*x || !n)
		return CUDA_ERROR_INVALID_VALUE;
	*copy = graph_find_copy_locked((*x)->copy, n->id);
	return *copy ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

static bool flat(const CUDA_MEMCPY3D *p)
{
	return p->Height <= 1 && p->Depth <= 1;
}

/* What the documentation lets one change; else the graph has to be made anew. */
static bool may_change(const CUgraphNodeParams *old, const CUgraphNodeParams *p)
{
	if (old->type != p->type)
		return false;
	switch (p->type) {
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return flat(&old->memcpy.copyParams) && flat(&p->memcpy.copyParams);
	case CU_GRAPH_NODE_TYPE_MEMSET:
		if (old->memset.height > 1)
			return old->memset.width == p->memset.width && old->memset.height == p->memset.height &&
			       old->memset.pitch == p->memset.pitch && old->memset.elementSize == p->memset.elementSize;
		return p->memset.height == old->memset.height;
	case CU_GRAPH_NODE_TYPE_KERNEL:
	case CU_GRAPH_NODE_TYPE_HOST:
	case CU_GRAPH_NODE_TYPE_EMPTY:
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		return true;
	default:
		return false;
	}
}

static CUresult set(CUgraphExec hx, CUgraphNode hn, const CUgraphNodeParams *p)
{
	struct context *ctx;
	struct node *copy;
	struct exec *x;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	r = find(hx, hn, &x, &copy);
	if (!r && !may_change(&copy->params, p))
		r = CUDA_ERROR_INVALID_VALUE;
	if (!r)
		r = node_set_locked(ctx, copy, p);
	return leave(r ? r : exec_build_locked(x));
}

EXPORT CUresult cuGraphExecKernelNodeSetParams_v2(CUgraphExec x, CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS *in)
{
	CUgraphNodeParams p = { .type = CU_GRAPH_NODE_TYPE_KERNEL };

	if (!in)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&p.kernel, in, sizeof(*in));
	return set(x, n, &p);
}

EXPORT CUresult cuGraphExecKernelNodeSetParams(CUgraphExec x, CUgraphNode n, const CUDA_KERNEL_NODE_PARAMS_v1 *in)
{
	CUgraphNodeParams p = { .type = CU_GRAPH_NODE_TYPE_KERNEL };

	if (!in)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&p.kernel, in, sizeof(*in));
	return set(x, n, &p);
}

EXPORT CUresult cuGraphExecMemcpyNodeSetParams(CUgraphExec x, CUgraphNode n, const CUDA_MEMCPY3D *in, CUcontext ctx)
{
	if (!in)
		return CUDA_ERROR_INVALID_VALUE;
	return set(x, n, &(CUgraphNodeParams){ .type = CU_GRAPH_NODE_TYPE_MEMCPY, .memcpy = { .copyCtx = ctx, .copyParams = *in } });
}

EXPORT CUresult cuGraphExecMemsetNodeSetParams(CUgraphExec x, CUgraphNode n, const CUDA_MEMSET_NODE_PARAMS *in, CUcontext ctx)
{
	CUgraphNodeParams p = { .type = CU_GRAPH_NODE_TYPE_MEMSET };

	if (!in)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&p.memset, in, sizeof(*in));
	p.memset.ctx = ctx;
	return set(x, n, &p);
}

EXPORT CUresult cuGraphExecHostNodeSetParams(CUgraphExec x, CUgraphNode n, const CUDA_HOST_NODE_PARAMS *in)
{
	if (!in)
		return CUDA_ERROR_INVALID_VALUE;
	return set(x, n, &(CUgraphNodeParams){ .type = CU_GRAPH_NODE_TYPE_HOST, .host = { .fn = in->fn, .userData = in->userData } });
}

EXPORT CUresult cuGraphExecEventRecordNodeSetEvent(CUgraphExec x, CUgraphNode n, CUevent e)
{
	return set(x, n, &(CUgraphNodeParams){ .type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .eventRecord = { .event = e } });
}

EXPORT CUresult cuGraphExecEventWaitNodeSetEvent(CUgraphExec x, CUgraphNode n, CUevent e)
{
	return set(x, n, &(CUgraphNodeParams){ .type = CU_GRAPH_NODE_TYPE_WAIT_EVENT, .eventWait = { .event = e } });
}

EXPORT CUresult cuGraphExecBatchMemOpNodeSetParams(CUgraphExec x, CUgraphNode n, const CUDA_BATCH_MEM_OP_NODE_PARAMS *in)
{
	CUgraphNodeParams p = { .type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP };

	if (!in)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&p.memOp, in, sizeof(*in));
	return set(x, n, &p);
}

/* Turning a node off makes it an empty one, for a while. */
static bool can_be_off(const struct node *n)
{
	return n->params.type == CU_GRAPH_NODE_TYPE_KERNEL || n->params.type == CU_GRAPH_NODE_TYPE_MEMCPY ||
	       n->params.type == CU_GRAPH_NODE_TYPE_MEMSET;
}

static CUresult enter_copy(CUgraphExec hx, CUgraphNode hn, struct exec **x, struct node **copy)
{
	CUresult r = enter();

	if (r)
		return r;
	lock();
	r = find(hx, hn, x, copy);
	return r ? leave(r) : CUDA_SUCCESS;
}

EXPORT CUresult cuGraphNodeSetEnabled(CUgraphExec hx, CUgraphNode hn, unsigned int enabled)
{
	struct node *copy;
	struct exec *x;
	CUresult r = enter_copy(hx, hn, &x, &copy);

	if (r)
		return r;
	if (!can_be_off(copy))
		return leave(CUDA_ERROR_INVALID_VALUE);
	copy->disabled = !enabled;
	return leave(exec_build_locked(x));
}

EXPORT CUresult cuGraphNodeGetEnabled(CUgraphExec hx, CUgraphNode hn, unsigned int *enabled)
{
	struct node *copy;
	struct exec *x;
	CUresult r = enter_copy(hx, hn, &x, &copy);

	if (r)
		return r;
	if (!enabled || !can_be_off(copy))
		return leave(CUDA_ERROR_INVALID_VALUE);
	*enabled = !copy->disabled;
	return leave(CUDA_SUCCESS);
}

/* Where two graphs of the same shape differ, for the one who asks. */
struct difference {
	CUgraphExecUpdateResult result;
	const struct node *node, *before;
};

static bool differs(struct difference *d, CUgraphExecUpdateResult result, const struct node *n, const struct node *before)
{
	*d = (struct difference){ result, n, before };
	return true;
}

static uint32_t position(const struct node *n)
{
	uint32_t i = 0;

	for (const struct node *o = n->graph->first; o != n; o = o->next)
		i++;
	return i;
}

static bool edges_differ(const struct node *old, const struct node *n, struct difference *d)
{
	if (old->n_after != n->n_after)
		return differs(d, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, n, NULL);
	for (uint32_t i = 0; i < n->n_after; i++)
		if (position(old->after[i]) != position(n->after[i]))
			return differs(d, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, n, n->after[i]);
	return false;
}

static bool graphs_differ(const struct graph *old, const struct graph *g, struct difference *d);

static bool nodes_differ(const struct node *old, const struct node *n, struct difference *d)
{
	if (old->params.type != n->params.type)
		return differs(d, CU_GRAPH_EXEC_UPDATE_ERROR_NODE_TYPE_CHANGED, n, NULL);
	if (edges_differ(old, n, d))
		return true;
	switch (n->params.type) {
	case CU_GRAPH_NODE_TYPE_GRAPH:
		return graphs_differ(old->child, n->child, d);
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		return differs(d, CU_GRAPH_EXEC_UPDATE_ERROR_NOT_SUPPORTED, n, NULL);
	case CU_GRAPH_NODE_TYPE_KERNEL:
		if (old->params.kernel.ctx != n->params.kernel.ctx)
			return differs(d, CU_GRAPH_EXEC_UPDATE_ERROR_UNSUPPORTED_FUNCTION_CHANGE, n, NULL);
		return false;
	default:
		return !may_change(&old->params, &n->params) && differs(d, CU_GRAPH_EXEC_UPDATE_ERROR_PARAMETERS_CHANGED, n, NULL);
	}
}

static bool graphs_differ(const struct graph *old, const struct graph *g, struct difference *d)
{
	const struct node *o = old->first, *n = g->first;

	for (; o && n; o = o->next, n = n->next)
		if (nodes_differ(o, n, d))
			return true;
	return (o || n) && differs(d, CU_GRAPH_EXEC_UPDATE_ERROR_TOPOLOGY_CHANGED, n, NULL);
}

/* The nodes of the copy stay those of the graph that it was made from. */
static void keep_origins(struct graph *to, const struct graph *old)
{
	const struct node *o = old->first;

	for (struct node *n = to->first; n; n = n->next, o = o->next) {
		n->origin = o->origin;
		n->disabled = o->disabled;
		if (n->child)
			keep_origins(n->child, o->child);
	}
}

static CUresult swap(struct exec *x, const struct graph *g)
{
	struct graph *old = x->copy, *copy = graph_copy_locked(g);
	CUresult r;

	if (!copy)
		return CUDA_ERROR_OUT_OF_MEMORY;
	keep_origins(copy, old);
	x->copy = copy;
	r = exec_build_locked(x);
	if (r)
		x->copy = old;
	graph_free_locked(r ? copy : old);
	return r;
}

static CUresult update(CUgraphExec hx, CUgraph hg, struct difference *d)
{
	CUresult r = enter();

	*d = (struct difference){ .result = CU_GRAPH_EXEC_UPDATE_ERROR };
	if (r)
		return r;
	lock();
	struct exec *x = handle_get_locked(hx, KIND_EXEC);
	const struct graph *g = handle_get_locked(hg, KIND_GRAPH);
	if (!x || !g || graph_is_captured_locked(g))
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (graphs_differ(x->copy, g, d))
		return leave(CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE);
	r = swap(x, g);
	if (!r)
		d->result = CU_GRAPH_EXEC_UPDATE_SUCCESS;
	return leave(r);
}

EXPORT CUresult cuGraphExecUpdate_v2(CUgraphExec x, CUgraph g, CUgraphExecUpdateResultInfo *out)
{
	struct difference d;
	CUresult r;

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	r = update(x, g, &d);
	*out = (CUgraphExecUpdateResultInfo){ .result = d.result, .errorNode = (CUgraphNode)d.node, .errorFromNode = (CUgraphNode)d.before };
	return r;
}

EXPORT CUresult cuGraphExecUpdate(CUgraphExec x, CUgraph g, CUgraphNode *error, CUgraphExecUpdateResult *result)
{
	struct difference d;
	CUresult r;

	if (!result)
		return CUDA_ERROR_INVALID_VALUE;
	r = update(x, g, &d);
	if (error)
		*error = (CUgraphNode)d.node;
	*result = d.result;
	return r;
}

/* The child graph's shape has to be the same. */
static CUresult set_child(CUgraphExec hx, CUgraphNode hn, CUgraph hg)
{
	struct difference d;
	struct node *copy;
	struct exec *x;
	CUresult r = enter_copy(hx, hn, &x, &copy);

	if (r)
		return r;
	const struct graph *g = handle_get_locked(hg, KIND_GRAPH);
	if (!g || !copy->child || graph_is_captured_locked(g) || graphs_differ(copy->child, g, &d))
		return leave(CUDA_ERROR_INVALID_VALUE);
	struct graph *child = graph_copy_locked(g);
	if (!child)
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	keep_origins(child, copy->child);
	graph_free_locked(copy->child);
	copy->child = child;
	child->child_of = copy;
	copy->params.graph.graph = (CUgraph)child;
	return leave(exec_build_locked(x));
}

EXPORT CUresult cuGraphExecChildGraphNodeSetParams(CUgraphExec x, CUgraphNode n, CUgraph g)
{
	return set_child(x, n, g);
}

EXPORT CUresult cuGraphExecNodeSetParams(CUgraphExec x, CUgraphNode n, CUgraphNodeParams *p)
{
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	return p->type == CU_GRAPH_NODE_TYPE_GRAPH ? set_child(x, n, p->graph.graph) : set(x, n, p);
}
