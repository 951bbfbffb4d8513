/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>

#include "capture.h"
#include "graph.h"

static CUresult enter_stream(CUstream h, bool per_thread, struct stream **s)
{
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	r = stream_get_locked(ctx, h, per_thread, s);
	return r ? leave(r) : CUDA_SUCCESS;
}

/* Edges with data would have to be kept for the next node; only plain ones are. */
static bool plain(const CUgraphEdgeData *edges, size_t n)
{
	for (size_t i = 0; edges && i < n; i++)
		if (edges[i].from_port || edges[i].to_port || edges[i].type)
			return false;
	return true;
}

static bool nodes_of_locked(const struct graph *g, const CUgraphNode *nodes, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		const struct node *node = handle_get_locked(nodes[i], KIND_NODE);

		if (!node || node->graph != g)
			return false;
	}
	return true;
}

static CUresult begin(CUstream h, CUstreamCaptureMode mode, struct graph *graph, const CUgraphNode *after, size_t n, bool per_thread)
{
	struct stream *s;
	CUresult r = enter_stream(h, per_thread, &s);

	if (r)
		return r;
	if (mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (s->legacy)
		return leave(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	if (s->capture)
		return leave(CUDA_ERROR_ILLEGAL_STATE);
	struct capture *c = calloc(1, sizeof(*c));
	struct graph *g = graph ? graph : graph_new_locked();
	if (!c || !g) {
		free(c);
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	}
	*c = (struct capture){ .next = sim.captures, .ctx = s->ctx, .origin = s, .graph = g, .mode = mode,
			       .thread = thread_id(), .id = ++sim.next_id, .borrowed = graph != NULL };
	sim.captures = c;
	s->capture = c;
	s->n_tail = 0;
	if (!capture_tail_locked(s, (struct node *const *)after, (uint32_t)n, false))
		c->invalid = true;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuStreamBeginCapture_v2(CUstream h, CUstreamCaptureMode mode)
{
	return begin(h, mode, NULL, NULL, 0, false);
}

EXPORT CUresult cuStreamBeginCapture_v2_ptsz(CUstream h, CUstreamCaptureMode mode)
{
	return begin(h, mode, NULL, NULL, 0, true);
}

EXPORT CUresult cuStreamBeginCapture(CUstream h)
{
	return begin(h, CU_STREAM_CAPTURE_MODE_GLOBAL, NULL, NULL, 0, false);
}

EXPORT CUresult cuStreamBeginCapture_ptsz(CUstream h)
{
	return begin(h, CU_STREAM_CAPTURE_MODE_GLOBAL, NULL, NULL, 0, true);
}

static CUresult begin_to(CUstream h, CUgraph hg, const CUgraphNode *after, const CUgraphEdgeData *edges, size_t n,
			 CUstreamCaptureMode mode, bool per_thread)
{
	CUresult r = enter();

	if (r)
		return r;
	if (!plain(edges, n))
		return CUDA_ERROR_NOT_SUPPORTED;
	lock();
	struct graph *g = handle_get_locked(hg, KIND_GRAPH);
	bool ok = g && (!n || after) && !graph_is_captured_locked(g) && nodes_of_locked(g, after, n);
	unlock();
	return ok ? begin(h, mode, g, after, n, per_thread) : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuStreamBeginCaptureToGraph(CUstream h, CUgraph g, const CUgraphNode *after, const CUgraphEdgeData *edges,
					    size_t n, CUstreamCaptureMode mode)
{
	return begin_to(h, g, after, edges, n, mode, false);
}

EXPORT CUresult cuStreamBeginCaptureToGraph_ptsz(CUstream h, CUgraph g, const CUgraphNode *after, const CUgraphEdgeData *edges,
						 size_t n, CUstreamCaptureMode mode)
{
	return begin_to(h, g, after, edges, n, mode, true);
}

static void mark(struct node *n)
{
	if (n->seen)
		return;
	n->seen = true;
	for (uint32_t i = 0; i < n->n_after; i++)
		mark(n->after[i]);
}

/* Whether all that other streams captured comes before the origin's end. */
static bool all_joined(const struct capture *c)
{
	bool ok = true;

	for (struct node *n = c->graph->first; n; n = n->next)
		n->seen = false;
	for (uint32_t i = 0; i < c->origin->n_tail; i++)
		mark(c->origin->tail[i]);
	for (const struct stream *s = c->ctx->streams; s; s = s->next)
		for (uint32_t i = 0; s->capture == c && i < s->n_tail; i++)
			ok &= s->tail[i]->seen;
	return ok;
}

static CUresult end(CUstream h, CUgraph *out, bool per_thread)
{
	struct stream *s;
	CUresult r = enter_stream(h, per_thread, &s);

	if (r)
		return r;
	if (!out)
		return leave(CUDA_ERROR_INVALID_VALUE);
	struct capture *c = s->capture;
	if (!c)
		return leave(CUDA_ERROR_ILLEGAL_STATE);
	*out = NULL;
	if (c->origin != s) {
		c->invalid = true;
		return leave(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	}
	if (c->mode != CU_STREAM_CAPTURE_MODE_RELAXED && c->thread != thread_id())
		return leave(CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
	if (c->invalid)
		r = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	else if (!all_joined(c))
		r = CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
	if (!r)
		*out = (CUgraph)c->graph;
	else if (!c->borrowed)
		graph_free_locked(c->graph);
	capture_end_locked(c);
	return leave(r);
}

EXPORT CUresult cuStreamEndCapture(CUstream h, CUgraph *out)
{
	return end(h, out, false);
}

EXPORT CUresult cuStreamEndCapture_ptsz(CUstream h, CUgraph *out)
{
	return end(h, out, true);
}

struct info {
	CUstreamCaptureStatus *status;
	cuuint64_t *id;
	CUgraph *graph;
	const CUgraphNode **after;
	size_t *n;
};

static CUresult capture_info(CUstream h, const struct info *o, bool per_thread)
{
	struct stream *s;
	CUresult r = enter_stream(h, per_thread, &s);

	if (r)
		return r;
	if (!o->status)
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (s->legacy) {
		/* Asking is allowed, but there is no answer, and the capture stays whole. */
		for (struct stream *b = s->ctx->streams; b; b = b->next)
			if (b->capture && !(b->flags & CU_STREAM_NON_BLOCKING))
				return leave(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
	}
	const struct capture *c = s->capture;
	*o->status = !c ? CU_STREAM_CAPTURE_STATUS_NONE : c->invalid ? CU_STREAM_CAPTURE_STATUS_INVALIDATED :
								       CU_STREAM_CAPTURE_STATUS_ACTIVE;
	bool active = c && !c->invalid;
	if (o->id)
		*o->id = active ? c->id : 0;
	if (o->graph)
		*o->graph = active ? (CUgraph)c->graph : NULL;
	if (o->after)
		*o->after = active ? (const CUgraphNode *)s->tail : NULL;
	if (o->n)
		*o->n = active ? s->n_tail : 0;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuStreamIsCapturing(CUstream h, CUstreamCaptureStatus *status)
{
	return capture_info(h, &(struct info){ .status = status }, false);
}

EXPORT CUresult cuStreamIsCapturing_ptsz(CUstream h, CUstreamCaptureStatus *status)
{
	return capture_info(h, &(struct info){ .status = status }, true);
}

EXPORT CUresult cuStreamGetCaptureInfo(CUstream h, CUstreamCaptureStatus *status, cuuint64_t *id)
{
	return capture_info(h, &(struct info){ .status = status, .id = id }, false);
}

EXPORT CUresult cuStreamGetCaptureInfo_ptsz(CUstream h, CUstreamCaptureStatus *status, cuuint64_t *id)
{
	return capture_info(h, &(struct info){ .status = status, .id = id }, true);
}

EXPORT CUresult cuStreamGetCaptureInfo_v2(CUstream h, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
					  const CUgraphNode **after, size_t *n)
{
	return capture_info(h, &(struct info){ status, id, graph, after, n }, false);
}

EXPORT CUresult cuStreamGetCaptureInfo_v2_ptsz(CUstream h, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
					       const CUgraphNode **after, size_t *n)
{
	return capture_info(h, &(struct info){ status, id, graph, after, n }, true);
}

EXPORT CUresult cuStreamGetCaptureInfo_v3(CUstream h, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
					  const CUgraphNode **after, const CUgraphEdgeData **edges, size_t *n)
{
	if (edges)
		*edges = NULL;
	return capture_info(h, &(struct info){ status, id, graph, after, n }, false);
}

EXPORT CUresult cuStreamGetCaptureInfo_v3_ptsz(CUstream h, CUstreamCaptureStatus *status, cuuint64_t *id, CUgraph *graph,
					       const CUgraphNode **after, const CUgraphEdgeData **edges, size_t *n)
{
	if (edges)
		*edges = NULL;
	return capture_info(h, &(struct info){ status, id, graph, after, n }, true);
}

EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *mode)
{
	CUstreamCaptureMode old = self.capture_mode;

	if (!mode || *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	self.capture_mode = *mode;
	*mode = old;
	return CUDA_SUCCESS;
}

static CUresult update(CUstream h, const CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t n, unsigned flags, bool per_thread)
{
	struct stream *s;
	CUresult r;

	if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (n && !nodes))
		return CUDA_ERROR_INVALID_VALUE;
	if (!plain(edges, n))
		return CUDA_ERROR_NOT_SUPPORTED;
	r = enter_stream(h, per_thread, &s);
	if (r)
		return r;
	if (!s->capture)
		return leave(CUDA_ERROR_ILLEGAL_STATE);
	if (s->capture->invalid)
		return leave(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	if (!nodes_of_locked(s->capture->graph, nodes, n))
		return leave(CUDA_ERROR_INVALID_VALUE);
	bool add = flags == CU_STREAM_ADD_CAPTURE_DEPENDENCIES;
	return leave(capture_tail_locked(s, (struct node *const *)nodes, (uint32_t)n, add) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

EXPORT CUresult cuStreamUpdateCaptureDependencies(CUstream h, CUgraphNode *nodes, size_t n, unsigned int flags)
{
	return update(h, nodes, NULL, n, flags, false);
}

EXPORT CUresult cuStreamUpdateCaptureDependencies_ptsz(CUstream h, CUgraphNode *nodes, size_t n, unsigned int flags)
{
	return update(h, nodes, NULL, n, flags, true);
}

EXPORT CUresult cuStreamUpdateCaptureDependencies_v2(CUstream h, CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t n,
						     unsigned int flags)
{
	return update(h, nodes, edges, n, flags, false);
}

EXPORT CUresult cuStreamUpdateCaptureDependencies_v2_ptsz(CUstream h, CUgraphNode *nodes, const CUgraphEdgeData *edges, size_t n,
							  unsigned int flags)
{
	return update(h, nodes, edges, n, flags, true);
}
