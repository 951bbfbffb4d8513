/* SPDX-License-Identifier: Apache-2.0 */
/* Stream capture: what is recorded, what is forbidden. The calls are in capture_api.c. */
#include <stdlib.h>
#include <string.h>

#include "capture.h"
#include "graph.h"

static struct capture *capture_by_id(uint64_t id)
{
	for (struct capture *c = sim.captures; c; c = c->next)
		if (c->id == id)
			return c;
	return NULL;
}

bool capture_event_locked(const struct event *e)
{
	return e->capture_id && capture_by_id(e->capture_id);
}

CUresult capture_unsafe_locked(void)
{
	uint64_t me = thread_id();
	CUresult r = CUDA_SUCCESS;

	if (self.capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED)
		return CUDA_SUCCESS;
	for (struct capture *c = sim.captures; c; c = c->next) {
		bool mine = c->thread == me && c->mode != CU_STREAM_CAPTURE_MODE_RELAXED;
		bool global = self.capture_mode == CU_STREAM_CAPTURE_MODE_GLOBAL && c->mode == CU_STREAM_CAPTURE_MODE_GLOBAL;

		if (mine || global) {
			c->invalid = true;
			r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	}
	return r;
}

CUresult capture_forbid_locked(struct stream *s)
{
	if (!s->capture)
		return CUDA_SUCCESS;
	if (s->capture->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	s->capture->invalid = true;
	return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult capture_forbid_context_locked(struct context *ctx)
{
	CUresult r = CUDA_SUCCESS;

	for (struct capture *c = sim.captures; c; c = c->next)
		if (c->ctx == ctx) {
			c->invalid = true;
			r = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
		}
	return r;
}

CUresult capture_legacy_locked(struct context *ctx)
{
	CUresult r = CUDA_SUCCESS;

	if (!sim.captures)
		return r;
	for (struct stream *s = ctx->streams; s; s = s->next)
		if (s->capture && !(s->flags & CU_STREAM_NON_BLOCKING)) {
			s->capture->invalid = true;
			r = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
		}
	return r;
}

/* Adds nodes to what the next one of the stream depends on. */
static bool tail_add(struct node ***tail, uint32_t *n, struct node *const *more, uint32_t n_more)
{
	struct node **p = realloc(*tail, (*n + n_more + 1) * sizeof(*p));

	if (!p)
		return false;
	*tail = p;
	for (uint32_t i = 0; i < n_more; i++) {
		uint32_t k = 0;

		while (k < *n && p[k] != more[i])
			k++;
		if (k == *n)
			p[(*n)++] = more[i];
	}
	return true;
}

bool capture_tail_locked(struct stream *s, struct node *const *nodes, uint32_t n, bool add)
{
	if (!add)
		s->n_tail = 0;
	return tail_add(&s->tail, &s->n_tail, nodes, n);
}

CUresult capture_join_locked(struct stream *s, const struct event *e)
{
	struct capture *c = capture_by_id(e->capture_id);

	if (s->legacy || s->ctx != c->ctx) {
		c->invalid = true;
		return s->legacy ? CUDA_ERROR_STREAM_CAPTURE_IMPLICIT : CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
	}
	s->capture = c;
	s->n_tail = 0;
	return CUDA_SUCCESS; /* capture_add takes over the event's nodes */
}

static CUresult spoil(struct capture *c, CUresult r)
{
	c->invalid = true;
	return r;
}

static CUresult add_wait(struct stream *s, const struct event *e)
{
	struct capture *c = s->capture;

	if (!capture_event_locked(e))
		return e->recorded ? spoil(c, CUDA_ERROR_STREAM_CAPTURE_ISOLATION) : CUDA_SUCCESS;
	if (e->capture_id != c->id) {
		spoil(capture_by_id(e->capture_id), CUDA_SUCCESS);
		return spoil(c, CUDA_ERROR_STREAM_CAPTURE_MERGE);
	}
	return tail_add(&s->tail, &s->n_tail, e->tail, e->n_tail) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult add_record(struct stream *s, struct event *e)
{
	e->n_tail = 0;
	if (!tail_add(&e->tail, &e->n_tail, s->tail, s->n_tail))
		return CUDA_ERROR_OUT_OF_MEMORY;
	e->capture_id = s->capture->id;
	return CUDA_SUCCESS;
}

static CUresult add_node(struct stream *st, const struct step *step)
{
	struct node *n = graph_node_new_locked(st->capture->graph, st->tail, NULL, st->n_tail);

	if (!n) {
		struct step drop = *step;

		step_release_locked(&drop);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	return node_set_step_locked(n, step) && capture_tail_locked(st, &n, 1, false) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* A captured launch is a child graph: what the executable graph does now. */
static CUresult add_launch(struct stream *st, const struct exec *x)
{
	struct node *n;
	CUresult r;

	if (x->copy->has_memory)
		return spoil(st->capture, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
	n = graph_node_new_locked(st->capture->graph, st->tail, NULL, st->n_tail);
	if (!n)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r = node_set_locked(st->ctx, n, &(CUgraphNodeParams){ .type = CU_GRAPH_NODE_TYPE_GRAPH, .graph = { .graph = (CUgraph)x->copy } });
	return r || capture_tail_locked(st, &n, 1, false) ? r : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult add_external_wait(struct stream *st, struct event *e)
{
	e->refs++;
	return add_node(st, &(struct step){ .kind = STEP_WAIT_EVENT, .event = e, .external = true });
}

CUresult capture_add_locked(const struct submit *s)
{
	struct stream *st = s->stream;
	struct capture *c = st->capture;

	if (c->invalid)
		return submit_refuse_locked(s, CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	if (s->event)
		return s->external ? add_external_wait(st, (struct event *)s->event) : add_wait(st, s->event);
	if (s->step.kind == STEP_RECORD && !s->step.external)
		return submit_refuse_locked(s, add_record(st, s->step.event)); /* the reference is not kept */
	if (s->exec)
		return add_launch(st, s->exec);
	if (s->step.kind == STEP_FREE)
		return submit_refuse_locked(s, spoil(c, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
	return add_node(st, &s->step);
}

void capture_end_locked(struct capture *c)
{
	for (struct capture **p = &sim.captures; *p; p = &(*p)->next)
		if (*p == c) {
			*p = c->next;
			break;
		}
	for (struct stream *s = c->ctx->streams; s; s = s->next)
		if (s->capture == c) {
			s->capture = NULL;
			s->n_tail = 0;
		}
	free(c);
}

/* A capturing stream goes: with the origin the capture goes, else it is spoilt. */
void capture_drop_stream_locked(struct stream *s)
{
	struct capture *c = s->capture;

	if (!c)
		return;
	if (c->origin == s) {
		if (!c->borrowed)
			graph_free_locked(c->graph);
		capture_end_locked(c);
		return;
	}
	c->invalid = true;
	s->capture = NULL;
}
