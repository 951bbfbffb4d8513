/* SPDX-License-Identifier: Apache-2.0 */
/* Executable graphs: made, launched, destroyed. Changing them is in graph_update.c. */
#include <stdlib.h>

#include "graph.h"

#define KNOWN_FLAGS                                                                                                    \
	(CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |                        \
	 CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH | CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY)

void program_put_locked(struct program *p)
{
	if (--p->refs > 0)
		return;
	for (uint32_t i = 0; i < p->n; i++)
		step_release_locked(&p->steps[i]);
	holding_free_locked(&p->holds);
	free(p->steps);
	free(p);
}

/* The next step, which is nothing yet. */
static struct step *program_more(struct program *p)
{
	if (p->n == p->room) {
		uint32_t room = p->room ? p->room * 2 : 16;
		struct step *steps = realloc(p->steps, room * sizeof(*steps));

		if (!steps)
			return NULL;
		p->steps = steps;
		p->room = room;
	}
	p->steps[p->n] = (struct step){ .kind = STEP_NOTHING };
	return &p->steps[p->n++];
}

static bool emit_values(const CUDA_BATCH_MEM_OP_NODE_PARAMS_v2 *b, struct program *p)
{
	for (unsigned i = 0; i < b->count; i++) {
		const CUstreamBatchMemOpParams *op = &b->paramArray[i];
		bool wide = op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 || op->operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;
		bool wait = op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 || op->operation == CU_STREAM_MEM_OP_WAIT_VALUE_32;
		struct step *st = program_more(p);

		if (!st)
			return false;
		st->kind = wait ? STEP_WAIT_VALUE : STEP_WRITE;
		st->value.address = op->waitValue.address;
		st->value.value = wide ? op->waitValue.value64 : op->waitValue.value;
		st->value.size = wide ? 8 : 4;
		st->value.flags = op->waitValue.flags;
	}
	return true;
}

static bool emit_graph(struct graph *g, struct program *p);

/* Writes the node's steps behind those of the nodes it depends on. */
static bool emit(struct node *n, struct program *p)
{
	if (n->seen)
		return true;
	n->seen = true;
	for (uint32_t i = 0; i < n->n_after; i++)
		if (!emit(n->after[i], p))
			return false;
	if (n->child)
		return emit_graph(n->child, p);
	if (n->params.type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP)
		return emit_values(&n->params.memOp, p);
	struct step *st = program_more(p);
	return st && (n->disabled || step_copy_locked(st, &n->step));
}

static bool emit_graph(struct graph *g, struct program *p)
{
	for (struct node *n = g->first; n; n = n->next)
		n->seen = false;
	for (struct node *n = g->first; n; n = n->next)
		if (!emit(n, p))
			return false;
	return true;
}

CUresult exec_build_locked(struct exec *x)
{
	struct program *p = calloc(1, sizeof(*p));

	if (!p)
		return CUDA_ERROR_OUT_OF_MEMORY;
	p->refs = 1;
	/* An empty graph is one step that does nothing. */
	if (!emit_graph(x->copy, p) || (p->n == 0 && !program_more(p)) || !holding_copy_locked(&p->holds, x->copy->holds)) {
		program_put_locked(p);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (x->program)
		program_put_locked(x->program);
	x->program = p;
	return CUDA_SUCCESS;
}

static void exec_free_locked(struct exec *x)
{
	if (x->source)
		x->source->instance = NULL;
	if (x->program)
		program_put_locked(x->program);
	if (x->copy)
		graph_free_locked(x->copy);
	if (x->last.stream)
		stream_put_locked(x->last.stream);
	free(x);
}

static CUresult exec_new_locked(struct graph *g, unsigned long long flags, struct exec **out)
{
	struct exec *x;
	CUresult r;

	if (flags & ~(unsigned long long)KNOWN_FLAGS || graph_is_captured_locked(g))
		return CUDA_ERROR_INVALID_VALUE;
	if (flags & CUDA_GRAPH_INSTANTIATE_FLAG_DEVICE_LAUNCH)
		return flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_SUPPORTED;
	if (g->instance)
		return CUDA_ERROR_NOT_SUPPORTED; /* of a graph with memory only one may exist */
	x = calloc(1, sizeof(*x));
	if (!x)
		return CUDA_ERROR_OUT_OF_MEMORY;
	x->id = ++sim.next_id;
	x->flags = flags;
	x->copy = graph_copy_locked(g);
	r = x->copy ? exec_build_locked(x) : CUDA_ERROR_OUT_OF_MEMORY;
	if (r) {
		exec_free_locked(x);
		return r;
	}
	if (g->has_memory) {
		x->source = g;
		g->instance = x;
	}
	handle_add_locked(x, KIND_EXEC);
	*out = x;
	return CUDA_SUCCESS;
}

static CUresult instantiate(CUgraphExec *out, CUgraph h, unsigned long long flags)
{
	uint64_t from = clock_ns();
	struct exec *x = NULL;
	CUresult r = enter();

	if (r)
		return r;
	lock();
	struct graph *g = handle_get_locked(h, KIND_GRAPH);
	r = g && out ? exec_new_locked(g, flags, &x) : CUDA_ERROR_INVALID_VALUE;
	if (!r)
		*out = (CUgraphExec)x;
	log_setup("cuGraphInstantiate", NULL, NULL, from);
	return leave(r);
}

/* An upload goes with a stream, so only the call that names one takes the flag. */
EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph g, unsigned long long flags)
{
	return flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD ? CUDA_ERROR_INVALID_VALUE : instantiate(out, g, flags);
}

static CUresult instantiate_old(CUgraphExec *out, CUgraph g, CUgraphNode *error, char *log, size_t n)
{
	if (error)
		*error = NULL;
	if (log && n)
		*log = 0;
	return instantiate(out, g, 0);
}

EXPORT CUresult cuGraphInstantiate(CUgraphExec *out, CUgraph g, CUgraphNode *error, char *log, size_t n)
{
	return instantiate_old(out, g, error, log, n);
}

EXPORT CUresult cuGraphInstantiate_v2(CUgraphExec *out, CUgraph g, CUgraphNode *error, char *log, size_t n)
{
	return instantiate_old(out, g, error, log, n);
}

static CUresult enter_exec(CUgraphExec h, struct exec **x)
{
	CUresult r = enter();

	if (r)
		return r;
	lock();
	*x = handle_get_locked(h, KIND_EXEC);
	return *x ? CUDA_SUCCESS : leave(CUDA_ERROR_INVALID_VALUE);
}

/* What of it runs still runs to its end. */
EXPORT CUresult cuGraphExecDestroy(CUgraphExec h)
{
	struct exec *x;
	CUresult r = enter_exec(h, &x);

	if (r)
		return r;
	handle_remove_locked(x);
	exec_free_locked(x);
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuGraphExecGetFlags(CUgraphExec h, cuuint64_t *flags)
{
	struct exec *x;
	CUresult r = enter_exec(h, &x);

	if (r)
		return r;
	if (!flags)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*flags = x->flags & ~(unsigned long long)CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuGraphExecGetId(CUgraphExec h, unsigned int *id)
{
	struct exec *x;
	CUresult r = enter_exec(h, &x);

	if (r)
		return r;
	if (!id)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*id = (unsigned)x->id;
	return leave(CUDA_SUCCESS);
}

static CUresult launch(CUgraphExec h, CUstream hs, bool per_thread)
{
	struct context *ctx;
	struct stream *s;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	struct exec *x = handle_get_locked(h, KIND_EXEC);
	if (!x)
		return leave(CUDA_ERROR_INVALID_VALUE);
	r = stream_get_locked(ctx, hs, per_thread, &s);
	if (r)
		return leave(r);
	return leave(submit_locked(&(struct submit){
		.name = "cuGraphLaunch", .class = SIM_WORK, .stream = s, .exec = x }, NULL));
}

EXPORT CUresult cuGraphLaunch(CUgraphExec x, CUstream s)
{
	return launch(x, s, false);
}

EXPORT CUresult cuGraphLaunch_ptsz(CUgraphExec x, CUstream s)
{
	return launch(x, s, true);
}

/* An upload is work for the GPU, but not much. */
static CUresult upload(CUgraphExec h, CUstream hs, bool per_thread)
{
	struct context *ctx;
	struct stream *s;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	r = handle_get_locked(h, KIND_EXEC) ? stream_get_locked(ctx, hs, per_thread, &s) : CUDA_ERROR_INVALID_VALUE;
	if (!r)
		r = capture_forbid_locked(s);
	if (r)
		return leave(r);
	return leave(submit_locked(&(struct submit){
		.name = "cuGraphUpload", .class = SIM_WORK, .stream = s, .step = { .kind = STEP_NOTHING } }, NULL));
}

EXPORT CUresult cuGraphUpload(CUgraphExec x, CUstream s)
{
	return upload(x, s, false);
}

EXPORT CUresult cuGraphUpload_ptsz(CUgraphExec x, CUstream s)
{
	return upload(x, s, true);
}

static CUresult instantiate_params(CUgraphExec *out, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p, bool per_thread)
{
	CUresult r;

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	r = instantiate(out, g, p->flags);
	p->hErrNode_out = NULL;
	p->result_out = r == CUDA_SUCCESS	? CUDA_GRAPH_INSTANTIATE_SUCCESS :
			r == CUDA_ERROR_NOT_SUPPORTED ? CUDA_GRAPH_INSTANTIATE_NODE_OPERATION_NOT_SUPPORTED :
						  CUDA_GRAPH_INSTANTIATE_ERROR;
	if (!r && p->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD)
		r = upload(*out, p->hUploadStream, per_thread);
	return r;
}

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
	return instantiate_params(out, g, p, false);
}

EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
	return instantiate_params(out, g, p, true);
}
