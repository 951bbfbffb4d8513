/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs made by hand: adding nodes. */
#include <string.h>

#include "graph.h"

/* Enters, and checks the graph and the nodes it is to depend on. */
static CUresult enter_add(const CUgraphNode *out, CUgraph h, const CUgraphNode *after, size_t n, struct context **ctx, struct graph **g)
{
	CUresult r = enter_context(ctx);

	if (r)
		return r;
	*g = handle_get_locked(h, KIND_GRAPH);
	bool ok = out && *g && (!n || after);
	for (size_t i = 0; ok && i < n; i++) {
		struct node *node = handle_get_locked(after[i], KIND_NODE);

		ok = node && node->graph == *g;
		for (size_t k = 0; ok && k < i; k++)
			ok = after[k] != after[i];
	}
	return ok ? CUDA_SUCCESS : leave(CUDA_ERROR_INVALID_VALUE);
}

/* Takes a node that could not be made out again: it is the last one. */
static void undo(struct graph *g, struct node *n)
{
	struct node **link = &g->first, *last = NULL;

	while (*link != n) {
		last = *link;
		link = &last->next;
	}
	*link = NULL;
	g->last = last;
	g->n--;
	graph_node_free_locked(n);
}

static CUresult add_edges(CUgraphNode *out, CUgraph h, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t n,
			  CUgraphNodeParams *p)
{
	struct context *ctx;
	struct graph *g;
	CUresult r = enter_add(out, h, after, n, &ctx, &g);

	if (r)
		return r;
	struct node *node = graph_node_new_locked(g, (struct node *const *)after, edges, (uint32_t)n);
	if (!node)
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	r = node_set_locked(ctx, node, p);
	if (r) {
		undo(g, node);
		return leave(r);
	}
	if (p->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC)
		p->alloc.dptr = node->params.alloc.dptr;
	*out = (CUgraphNode)node;
	return leave(CUDA_SUCCESS);
}

static CUresult add(CUgraphNode *out, CUgraph h, const CUgraphNode *after, size_t n, CUgraphNodeParams *p)
{
	return add_edges(out, h, after, NULL, n, p);
}

static CUresult add_any(CUgraphNode *out, CUgraph h, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t n, CUgraphNodeParams *p)
{
	if (!p || p->reserved0[0] || p->reserved0[1] || p->reserved0[2] || p->reserved2)
		return CUDA_ERROR_INVALID_VALUE;
	return add_edges(out, h, after, edges, n, p);
}

EXPORT CUresult cuGraphAddNode(CUgraphNode *out, CUgraph h, const CUgraphNode *after, size_t n, CUgraphNodeParams *p)
{
	return add_any(out, h, after, NULL, n, p);
}

EXPORT CUresult cuGraphAddNode_v2(CUgraphNode *out, CUgraph h, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t n,
				  CUgraphNodeParams *p)
{
	return add_any(out, h, after, edges, n, p);
}

EXPORT CUresult cuGraphAddNode_v3(CUgraphNode *out, CUgraph h, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t n,
				  CUgraphNodeParams *p)
{
	return add_any(out, h, after, edges, n, p);
}

EXPORT CUresult cuGraphAddEmptyNode(CUgraphNode *out, CUgraph h, const CUgraphNode *after, size_t n)
{
	return add(out, h, after, n, &(CUgraphNodeParams){ .type = CU_GRAPH_NODE_TYPE_EMPTY });
}

EXPORT CUresult cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph h, const CUgraphNode *after, size_t n, const CUDA_KERNEL_NODE_PARAMS *p)
{
	CUgraphNodeParams q = { .type = CU_GRAPH_NODE_TYPE_KERNEL };

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&q.kernel, p, sizeof(*p)); /* versions 2 and 3 are one struct */
	return add(out, h, after, n, &q);
}

EXPORT CUresult cuGraphAddKernelNode(CUgraphNode *out, CUgraph h, const CUgraphNode *after, size_t n, const CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
	CUgraphNodeParams q = { .type = CU_GRAPH_NODE_TYPE_KERNEL };

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&q.kernel, p, sizeof(*p)); /* version 2 only adds fields */
	return add(out, h, after, n, &q);
}

EXPORT CUresult cuGraphAddHostNode(CUgraphNode *out, CUgraph h, const CUgraphNode *after, size_t n, const CUDA_HOST_NODE_PARAMS *p)
{
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	return add(out, h, after, n, &(CUgraphNodeParams){ .type = CU_GRAPH_NODE_TYPE_HOST,
							   .host = { .fn = p->fn, .userData = p->userData } });
}

EXPORT CUresult cuGraphAddMemsetNode(CUgraphNode *out, CUgraph h, const CUgraphNode *after, size_t n, const CUDA_MEMSET_NODE_PARAMS *p,
				     CUcontext ctx)
{
	CUgraphNodeParams q = { .type = CU_GRAPH_NODE_TYPE_MEMSET };

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&q.memset, p, sizeof(*p)); /* version 2 only adds the context */
	q.memset.ctx = ctx;
	return add(out, h, after, n, &q);
}

EXPORT CUresult cuGraphAddMemcpyNode(CUgraphNode *out, CUgraph h, const CUgraphNode *after, size_t n, const CUDA_MEMCPY3D *p, CUcontext ctx)
{
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	return add(out, h, after, n, &(CUgraphNodeParams){ .type = CU_GRAPH_NODE_TYPE_MEMCPY,
							   .memcpy = { .copyCtx = ctx, .copyParams = *p } });
}

EXPORT CUresult cuGraphAddChildGraphNode(CUgraphNode *out, CUgraph h, const CUgraphNode *after, size_t n, CUgraph child)
{
	return add(out, h, after, n, &(CUgraphNodeParams){ .type = CU_GRAPH_NODE_TYPE_GRAPH, .graph = { .graph = child } });
}

EXPORT CUresult cuGraphAddEventRecordNode(CUgraphNode *out, CUgraph h, const CUgraphNode *after, size_t n, CUevent e)
{
	return add(out, h, after, n, &(CUgraphNodeParams){ .type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .eventRecord = { .event = e } });
}

EXPORT CUresult cuGraphAddEventWaitNode(CUgraphNode *out, CUgraph h, const CUgraphNode *after, size_t n, CUevent e)
{
	return add(out, h, after, n, &(CUgraphNodeParams){ .type = CU_GRAPH_NODE_TYPE_WAIT_EVENT, .eventWait = { .event = e } });
}

EXPORT CUresult cuGraphAddMemAllocNode(CUgraphNode *out, CUgraph h, const CUgraphNode *after, size_t n, CUDA_MEM_ALLOC_NODE_PARAMS *p)
{
	CUgraphNodeParams q = { .type = CU_GRAPH_NODE_TYPE_MEM_ALLOC };
	CUresult r;

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&q.alloc, p, sizeof(*p)); /* versions 1 and 2 are one struct */
	r = add(out, h, after, n, &q);
	if (!r)
		p->dptr = q.alloc.dptr;
	return r;
}

EXPORT CUresult cuGraphAddMemFreeNode(CUgraphNode *out, CUgraph h, const CUgraphNode *after, size_t n, CUdeviceptr p)
{
	return add(out, h, after, n, &(CUgraphNodeParams){ .type = CU_GRAPH_NODE_TYPE_MEM_FREE, .free = { .dptr = p } });
}

EXPORT CUresult cuGraphAddBatchMemOpNode(CUgraphNode *out, CUgraph h, const CUgraphNode *after, size_t n,
					 const CUDA_BATCH_MEM_OP_NODE_PARAMS *p)
{
	CUgraphNodeParams q = { .type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP };

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&q.memOp, p, sizeof(*p)); /* versions 1 and 2 are one struct */
	return add(out, h, after, n, &q);
}
