/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters of the nodes of a graph: asked for and changed. */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

static CUresult enter_node(CUgraphNode h, CUgraphNodeType type, struct node **n)
{
	CUresult r = enter();

	if (r)
		return r;
	lock();
	*n = handle_get_locked(h, KIND_NODE);
	return *n && (*n)->params.type == type ? CUDA_SUCCESS : leave(CUDA_ERROR_INVALID_VALUE);
}

/* VALUE: of the parameters of n, as the caller's struct */
#define GET(NAME, TYPE, NODE_TYPE, SIZE, VALUE)                                                                        \
	EXPORT CUresult NAME(CUgraphNode h, TYPE *out)                                                                 \
	{                                                                                                              \
		struct node *n;                                                                                        \
		CUresult r = enter_node(h, NODE_TYPE, &n);                                                             \
                                                                                                                       \
		if (r)                                                                                                 \
			return r;                                                                                      \
		if (!out)                                                                                              \
			return leave(CUDA_ERROR_INVALID_VALUE);                                                        \
		memcpy(out, &(VALUE), SIZE);                                                                           \
		return leave(CUDA_SUCCESS);                                                                            \
	}

#define GET_ALL(NAME, TYPE, NODE_TYPE, VALUE) GET(NAME, TYPE, NODE_TYPE, sizeof(TYPE), VALUE)

GET_ALL(cuGraphKernelNodeGetParams, CUDA_KERNEL_NODE_PARAMS_v1, CU_GRAPH_NODE_TYPE_KERNEL, n->params.kernel)
GET_ALL(cuGraphKernelNodeGetParams_v2, CUDA_KERNEL_NODE_PARAMS, CU_GRAPH_NODE_TYPE_KERNEL, n->params.kernel)
GET_ALL(cuGraphMemcpyNodeGetParams, CUDA_MEMCPY3D, CU_GRAPH_NODE_TYPE_MEMCPY, n->params.memcpy.copyParams)
GET_ALL(cuGraphMemsetNodeGetParams, CUDA_MEMSET_NODE_PARAMS, CU_GRAPH_NODE_TYPE_MEMSET, n->params.memset)
GET_ALL(cuGraphHostNodeGetParams, CUDA_HOST_NODE_PARAMS, CU_GRAPH_NODE_TYPE_HOST, n->params.host)
GET_ALL(cuGraphChildGraphNodeGetGraph, CUgraph, CU_GRAPH_NODE_TYPE_GRAPH, n->params.graph.graph)
GET_ALL(cuGraphEventRecordNodeGetEvent, CUevent, CU_GRAPH_NODE_TYPE_EVENT_RECORD, n->params.eventRecord.event)
GET_ALL(cuGraphEventWaitNodeGetEvent, CUevent, CU_GRAPH_NODE_TYPE_WAIT_EVENT, n->params.eventWait.event)
GET_ALL(cuGraphMemAllocNodeGetParams, CUDA_MEM_ALLOC_NODE_PARAMS, CU_GRAPH_NODE_TYPE_MEM_ALLOC, n->params.alloc)
GET_ALL(cuGraphMemFreeNodeGetParams, CUdeviceptr, CU_GRAPH_NODE_TYPE_MEM_FREE, n->params.free.dptr)
GET_ALL(cuGraphBatchMemOpNodeGetParams, CUDA_BATCH_MEM_OP_NODE_PARAMS, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, n->params.memOp)

EXPORT CUresult cuGraphNodeGetParams(CUgraphNode h, CUgraphNodeParams *out)
{
	CUresult r = enter();

	if (r)
		return r;
	lock();
	const struct node *n = handle_get_locked(h, KIND_NODE);
	if (!n || !out)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*out = n->params;
	return leave(CUDA_SUCCESS);
}

static bool may_change(const struct node *n, const CUgraphNodeParams *p)
{
	return n && n->params.type == p->type && p->type != CU_GRAPH_NODE_TYPE_MEM_ALLOC && p->type != CU_GRAPH_NODE_TYPE_MEM_FREE &&
	       p->type != CU_GRAPH_NODE_TYPE_GRAPH;
}

/* The type of a node never changes, nor do its memory and its child graph. */
static CUresult set(CUgraphNode h, const CUgraphNodeParams *p)
{
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	struct node *n = handle_get_locked(h, KIND_NODE);
	return leave(may_change(n, p) ? node_set_locked(ctx, n, p) : CUDA_ERROR_INVALID_VALUE);
}

EXPORT CUresult cuGraphNodeSetParams(CUgraphNode h, CUgraphNodeParams *p)
{
	return p ? set(h, p) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuGraphNodeSetParams_v2(CUgraphNode h, CUgraphNodeParams *p)
{
	return p ? set(h, p) : CUDA_ERROR_INVALID_VALUE;
}

/* The struct of the call becomes the first bytes of FIELD. */
#define SET(NAME, TYPE, NODE_TYPE, FIELD)                                                                              \
	EXPORT CUresult NAME(CUgraphNode h, const TYPE *in)                                                            \
	{                                                                                                              \
		CUgraphNodeParams p = { .type = NODE_TYPE };                                                           \
                                                                                                                       \
		if (!in)                                                                                               \
			return CUDA_ERROR_INVALID_VALUE;                                                               \
		memcpy(&p.FIELD, in, sizeof(*in));                                                                     \
		return set(h, &p);                                                                                     \
	}

SET(cuGraphKernelNodeSetParams, CUDA_KERNEL_NODE_PARAMS_v1, CU_GRAPH_NODE_TYPE_KERNEL, kernel)
SET(cuGraphKernelNodeSetParams_v2, CUDA_KERNEL_NODE_PARAMS, CU_GRAPH_NODE_TYPE_KERNEL, kernel)
SET(cuGraphMemcpyNodeSetParams, CUDA_MEMCPY3D, CU_GRAPH_NODE_TYPE_MEMCPY, memcpy.copyParams)
SET(cuGraphMemsetNodeSetParams, CUDA_MEMSET_NODE_PARAMS, CU_GRAPH_NODE_TYPE_MEMSET, memset)
SET(cuGraphHostNodeSetParams, CUDA_HOST_NODE_PARAMS, CU_GRAPH_NODE_TYPE_HOST, host)
SET(cuGraphBatchMemOpNodeSetParams, CUDA_BATCH_MEM_OP_NODE_PARAMS, CU_GRAPH_NODE_TYPE_BATCH_MEM_OP, memOp)

EXPORT CUresult cuGraphEventRecordNodeSetEvent(CUgraphNode h, CUevent e)
{
	return set(h, &(CUgraphNodeParams){ .type = CU_GRAPH_NODE_TYPE_EVENT_RECORD, .eventRecord = { .event = e } });
}

EXPORT CUresult cuGraphEventWaitNodeSetEvent(CUgraphNode h, CUevent e)
{
	return set(h, &(CUgraphNodeParams){ .type = CU_GRAPH_NODE_TYPE_WAIT_EVENT, .eventWait = { .event = e } });
}

/* Attributes of kernel nodes are kept and change nothing. */
EXPORT CUresult cuGraphKernelNodeGetAttribute(CUgraphNode h, CUkernelNodeAttrID id, CUkernelNodeAttrValue *out)
{
	struct node *n;
	CUresult r = enter_node(h, CU_GRAPH_NODE_TYPE_KERNEL, &n);

	if (r)
		return r;
	if (!out || id >= NODE_ATTRIBUTES)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*out = n->attributes ? n->attributes[id] : (CUkernelNodeAttrValue){ 0 };
	return leave(CUDA_SUCCESS);
}

static bool attributes_there(struct node *n)
{
	if (!n->attributes)
		n->attributes = calloc(NODE_ATTRIBUTES, sizeof(*n->attributes));
	return n->attributes != NULL;
}

EXPORT CUresult cuGraphKernelNodeSetAttribute(CUgraphNode h, CUkernelNodeAttrID id, const CUkernelNodeAttrValue *value)
{
	struct node *n;
	CUresult r = enter_node(h, CU_GRAPH_NODE_TYPE_KERNEL, &n);

	if (r)
		return r;
	if (!value || id >= NODE_ATTRIBUTES)
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (!attributes_there(n))
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	n->attributes[id] = *value;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuGraphKernelNodeCopyAttributes(CUgraphNode to, CUgraphNode from)
{
	struct node *n;
	CUresult r = enter_node(to, CU_GRAPH_NODE_TYPE_KERNEL, &n);

	if (r)
		return r;
	const struct node *source = handle_get_locked(from, KIND_NODE);
	if (!source || source->params.type != CU_GRAPH_NODE_TYPE_KERNEL)
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (!attributes_there(n))
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	if (source->attributes)
		memmove(n->attributes, source->attributes, NODE_ATTRIBUTES * sizeof(*n->attributes));
	else
		memset(n->attributes, 0, NODE_ATTRIBUTES * sizeof(*n->attributes));
	return leave(CUDA_SUCCESS);
}
