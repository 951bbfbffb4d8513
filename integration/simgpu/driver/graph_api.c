/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a graph and its launch. Making nodes by hand is in graph_nodes.c. */
#include <stdlib.h>

#include "sim.h"

EXPORT CUresult cuGraphCreate(CUgraph *out, unsigned int flags)
{
	CUresult r = enter();

	if (r)
		return r;
	if (!out || flags)
		return CUDA_ERROR_INVALID_VALUE;
	lock();
	*out = (CUgraph)graph_new_locked();
	return leave(*out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
}

static CUresult enter_graph(CUgraph h, struct graph **g)
{
	CUresult r = enter();

	if (r)
		return r;
	lock();
	*g = handle_get_locked(h, KIND_GRAPH);
	return *g ? CUDA_SUCCESS : leave(CUDA_ERROR_INVALID_VALUE);
}

EXPORT CUresult cuGraphDestroy(CUgraph h)
{
	struct graph *g;
	CUresult r = enter_graph(h, &g);

	if (r)
		return r;
	graph_free_locked(g);
	return leave(CUDA_SUCCESS);
}

/* Writes the node's steps behind those of the nodes it depends on. */
static bool emit(struct node *n, struct exec *x)
{
	if (n->seen)
		return true;
	n->seen = true;
	for (uint32_t i = 0; i < n->n_after; i++)
		if (!emit(n->after[i], x))
			return false;
	if (!step_copy(&x->steps[x->n_steps], &n->step))
		return false;
	x->n_steps++;
	return true;
}

static CUresult instantiate(CUgraphExec *out, CUgraph h, unsigned long long flags)
{
	uint64_t from = clock_ns();
	struct graph *g;
	CUresult r = enter_graph(h, &g);

	if (r)
		return r;
	struct exec *x = calloc(1, sizeof(*x));
	if (!out || !x) {
		free(x);
		return leave(out ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE);
	}
	x->refs = 1;
	x->flags = flags;
	x->steps = calloc(g->n + 1, sizeof(*x->steps));
	bool ok = x->steps != NULL;
	for (struct node *n = g->first; n; n = n->next)
		n->seen = false;
	for (struct node *n = g->first; n && ok; n = n->next)
		ok = emit(n, x);
	if (!ok) {
		exec_put_locked(x);
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	}
	if (x->n_steps == 0)
		x->n_steps = 1; /* an empty graph: one step that does nothing */
	handle_add_locked(x, KIND_EXEC);
	*out = (CUgraphExec)x;
	log_setup("cuGraphInstantiate", NULL, NULL, from);
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuGraphInstantiateWithFlags(CUgraphExec *out, CUgraph g, unsigned long long flags)
{
	return instantiate(out, g, flags);
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

static CUresult instantiate_params(CUgraphExec *out, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
	CUresult r;

	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	r = instantiate(out, g, p->flags);
	p->hErrNode_out = NULL;
	p->result_out = r ? CUDA_GRAPH_INSTANTIATE_ERROR : CUDA_GRAPH_INSTANTIATE_SUCCESS;
	return r;
}

EXPORT CUresult cuGraphInstantiateWithParams(CUgraphExec *out, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
	return instantiate_params(out, g, p);
}

EXPORT CUresult cuGraphInstantiateWithParams_ptsz(CUgraphExec *out, CUgraph g, CUDA_GRAPH_INSTANTIATE_PARAMS *p)
{
	return instantiate_params(out, g, p);
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
	exec_put_locked(x);
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
	*flags = x->flags;
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

EXPORT CUresult cuGraphGetNodes(CUgraph h, CUgraphNode *nodes, size_t *n)
{
	struct graph *g;
	CUresult r = enter_graph(h, &g);
	size_t i = 0;

	if (r)
		return r;
	if (!n)
		return leave(CUDA_ERROR_INVALID_VALUE);
	for (struct node *p = g->first; p; p = p->next, i++)
		if (nodes && i < *n)
			nodes[i] = (CUgraphNode)p;
	for (size_t k = i; nodes && k < *n; k++)
		nodes[k] = NULL;
	*n = nodes && *n < i ? *n : i;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuGraphNodeGetType(CUgraphNode h, CUgraphNodeType *type)
{
	CUresult r = enter();

	if (r)
		return r;
	lock();
	struct node *n = handle_get_locked(h, KIND_NODE);
	if (!n || !type)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*type = n->type;
	return leave(CUDA_SUCCESS);
}
