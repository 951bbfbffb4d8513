/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs made by hand: kernel, set, copy, host and empty nodes. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

/* Enters, and checks the graph and the nodes it is to depend on. */
static CUresult enter_add(CUgraphNode *out, CUgraph h, const CUgraphNode *after, size_t n, struct context **ctx, struct graph **g)
{
	CUresult r = enter_context(ctx);

	if (r)
		return r;
	*g = handle_get_locked(h, KIND_GRAPH);
	bool ok = out && *g && (!n || after);
	for (size_t i = 0; ok && i < n; i++) {
		struct node *node = handle_get_locked(after[i], KIND_NODE);

		ok = node && node->graph == *g;
	}
	return ok ? CUDA_SUCCESS : leave(CUDA_ERROR_INVALID_VALUE);
}

static CUresult finish(CUgraphNode *out, struct graph *g, const CUgraphNode *after, size_t n, CUgraphNodeType type, const struct step *st)
{
	struct node *node = graph_add_locked(g, type, st, (struct node *const *)after, (uint32_t)n);

	*out = (CUgraphNode)node;
	return leave(node ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

EXPORT CUresult cuGraphAddEmptyNode(CUgraphNode *out, CUgraph h, const CUgraphNode *after, size_t n)
{
	struct context *ctx;
	struct graph *g;
	CUresult r = enter_add(out, h, after, n, &ctx, &g);

	return r ? r : finish(out, g, after, n, CU_GRAPH_NODE_TYPE_EMPTY, &(struct step){ .kind = STEP_NOTHING });
}

EXPORT CUresult cuGraphAddKernelNode_v2(CUgraphNode *out, CUgraph h, const CUgraphNode *after, size_t n, const CUDA_KERNEL_NODE_PARAMS *p)
{
	const char *name;
	struct context *ctx;
	struct graph *g;
	struct step st;
	CUresult r = enter_add(out, h, after, n, &ctx, &g);

	if (r)
		return r;
	r = p ? launch_step_locked(ctx, p, &st, &name) : CUDA_ERROR_INVALID_VALUE;
	return r ? leave(r) : finish(out, g, after, n, CU_GRAPH_NODE_TYPE_KERNEL, &st);
}

EXPORT CUresult cuGraphAddKernelNode(CUgraphNode *out, CUgraph h, const CUgraphNode *after, size_t n, const CUDA_KERNEL_NODE_PARAMS_v1 *p)
{
	CUDA_KERNEL_NODE_PARAMS v2 = { 0 };

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(&v2, p, sizeof(*p)); /* version 2 only adds fields */
	return cuGraphAddKernelNode_v2(out, h, after, n, &v2);
}

EXPORT CUresult cuGraphAddHostNode(CUgraphNode *out, CUgraph h, const CUgraphNode *after, size_t n, const CUDA_HOST_NODE_PARAMS *p)
{
	struct context *ctx;
	struct graph *g;
	CUresult r = enter_add(out, h, after, n, &ctx, &g);

	if (r)
		return r;
	if (!p || !p->fn)
		return leave(CUDA_ERROR_INVALID_VALUE);
	return finish(out, g, after, n, CU_GRAPH_NODE_TYPE_HOST,
		      &(struct step){ .kind = STEP_HOST, .host = { .fn = p->fn, .data = p->userData } });
}

EXPORT CUresult cuGraphAddMemsetNode(CUgraphNode *out, CUgraph h, const CUgraphNode *after, size_t n, const CUDA_MEMSET_NODE_PARAMS *p,
				     CUcontext hc)
{
	struct context *ctx;
	struct graph *g;
	CUresult r = enter_add(out, h, after, n, &ctx, &g);

	(void)hc;
	if (r)
		return r;
	if (!p || (p->elementSize != 1 && p->elementSize != 2 && p->elementSize != 4) || !p->width || !p->height)
		return leave(CUDA_ERROR_INVALID_VALUE);
	return finish(out, g, after, n, CU_GRAPH_NODE_TYPE_MEMSET,
		      &(struct step){ .kind = STEP_SET, .set = {
			.dst = p->dst, .pitch = p->pitch, .width = p->width, .height = p->height, .value = p->value,
			.size = p->elementSize } });
}

static bool side(CUmemorytype type, const void *host, CUdeviceptr device, size_t x, size_t y, size_t pitch, uint64_t *at)
{
	if (type != CU_MEMORYTYPE_HOST && type != CU_MEMORYTYPE_DEVICE && type != CU_MEMORYTYPE_UNIFIED)
		return false;
	*at = (type == CU_MEMORYTYPE_HOST ? (uint64_t)(uintptr_t)host : device) + y * pitch + x;
	return true;
}

/* Rectangles only: a depth above 1 is not simulated. */
EXPORT CUresult cuGraphAddMemcpyNode(CUgraphNode *out, CUgraph h, const CUgraphNode *after, size_t n, const CUDA_MEMCPY3D *p, CUcontext hc)
{
	struct context *ctx;
	struct graph *g;
	struct copy c = { 0 };
	CUresult r = enter_add(out, h, after, n, &ctx, &g);

	(void)hc;
	if (r)
		return r;
	if (!p || !p->WidthInBytes || !p->Height)
		return leave(CUDA_ERROR_INVALID_VALUE);
	c.width = p->WidthInBytes;
	c.height = p->Height;
	c.src_pitch = p->srcPitch ? p->srcPitch : c.width;
	c.dst_pitch = p->dstPitch ? p->dstPitch : c.width;
	if (p->Depth > 1 || !side(p->srcMemoryType, p->srcHost, p->srcDevice, p->srcXInBytes, p->srcY, c.src_pitch, &c.src) ||
	    !side(p->dstMemoryType, p->dstHost, p->dstDevice, p->dstXInBytes, p->dstY, c.dst_pitch, &c.dst))
		return leave(CUDA_ERROR_NOT_SUPPORTED);
	return finish(out, g, after, n, CU_GRAPH_NODE_TYPE_MEMCPY, &(struct step){ .kind = STEP_COPY, .copy = c });
}
