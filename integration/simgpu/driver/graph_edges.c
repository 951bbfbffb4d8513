/* SPDX-License-Identifier: Apache-2.0 */
/* Changing the shape of a graph: its edges, taking a node out. */
#include "graph.h"

static bool walk(struct node *from, const struct node *to)
{
	if (from == to)
		return true;
	from->seen = true;
	for (uint32_t i = 0; i < from->n_after; i++)
		if (!from->after[i]->seen && walk(from->after[i], to))
			return true;
	return false;
}

/* Whether one comes after the other, or is it. */
static bool reaches(struct node *from, const struct node *to)
{
	for (struct node *n = from->graph->first; n; n = n->next)
		n->seen = false;
	return walk(from, to);
}

static uint32_t edge_find(const struct node *to, const struct node *from)
{
	uint32_t i = 0;

	while (i < to->n_after && to->after[i] != from)
		i++;
	return i;
}

static void edge_remove(struct node *to, uint32_t i)
{
	to->n_after--;
	for (; i < to->n_after; i++) {
		to->after[i] = to->after[i + 1];
		to->edges[i] = to->edges[i + 1];
	}
}

/* Both ends of an edge in this graph, or false. */
static bool ends(const struct graph *g, CUgraphNode hf, CUgraphNode ht, struct node **from, struct node **to)
{
	*from = handle_get_locked(hf, KIND_NODE);
	*to = handle_get_locked(ht, KIND_NODE);
	return *from && *to && (*from)->graph == g && (*to)->graph == g;
}

/* Enters and checks that all the edges are, or are not, there. */
static CUresult enter_edges(CUgraph h, const CUgraphNode *from, const CUgraphNode *to, size_t n, bool there, struct graph **g)
{
	CUresult r = enter();

	if (r)
		return r;
	lock();
	*g = handle_get_locked(h, KIND_GRAPH);
	if (!*g || (n && (!from || !to)) || graph_is_captured_locked(*g))
		return leave(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; i < n; i++) {
		struct node *a, *b;

		if (!ends(*g, from[i], to[i], &a, &b) || (edge_find(b, a) < b->n_after) != there)
			return leave(CUDA_ERROR_INVALID_VALUE);
		/* A cycle is not an order. */
		if (!there && reaches(a, b))
			return leave(CUDA_ERROR_INVALID_VALUE);
	}
	return CUDA_SUCCESS;
}

static void remove_edges(const CUgraphNode *from, const CUgraphNode *to, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct node *b = (struct node *)to[i];

		edge_remove(b, edge_find(b, (struct node *)from[i]));
	}
}

static CUresult add(CUgraph h, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *edges, size_t n)
{
	struct graph *g;
	CUresult r = enter_edges(h, from, to, n, false, &g);

	if (r)
		return r;
	for (size_t i = 0; i < n && !r; i++) {
		struct node *a = (struct node *)from[i], *b = (struct node *)to[i];

		/* Those before it may have made it one edge twice, or a cycle. */
		if (edge_find(b, a) < b->n_after || reaches(a, b))
			r = CUDA_ERROR_INVALID_VALUE;
		else if (!edge_add(b, a, edges ? &edges[i] : NULL))
			r = CUDA_ERROR_OUT_OF_MEMORY;
		if (r)
			remove_edges(from, to, i);
	}
	return leave(r);
}

static CUresult take(CUgraph h, const CUgraphNode *from, const CUgraphNode *to, size_t n)
{
	struct graph *g;
	CUresult r = enter_edges(h, from, to, n, true, &g);

	if (r)
		return r;
	if (g->has_memory)
		return leave(CUDA_ERROR_NOT_SUPPORTED);
	for (size_t i = 0; i < n; i++)
		for (size_t k = 0; k < i; k++)
			if (from[i] == from[k] && to[i] == to[k])
				return leave(CUDA_ERROR_INVALID_VALUE);
	remove_edges(from, to, n);
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuGraphAddDependencies(CUgraph h, const CUgraphNode *from, const CUgraphNode *to, size_t n)
{
	return add(h, from, to, NULL, n);
}

EXPORT CUresult cuGraphAddDependencies_v2(CUgraph h, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *edges, size_t n)
{
	return add(h, from, to, edges, n);
}

EXPORT CUresult cuGraphRemoveDependencies(CUgraph h, const CUgraphNode *from, const CUgraphNode *to, size_t n)
{
	return take(h, from, to, n);
}

EXPORT CUresult cuGraphRemoveDependencies_v2(CUgraph h, const CUgraphNode *from, const CUgraphNode *to, const CUgraphEdgeData *edges, size_t n)
{
	(void)edges; /* an edge is told by its ends */
	return take(h, from, to, n);
}

EXPORT CUresult cuGraphDestroyNode(CUgraphNode h)
{
	CUresult r = enter();

	if (r)
		return r;
	lock();
	struct node *n = handle_get_locked(h, KIND_NODE);
	if (!n || graph_is_captured_locked(n->graph))
		return leave(CUDA_ERROR_INVALID_VALUE);
	struct graph *g = n->graph;
	if (g->has_memory)
		return leave(CUDA_ERROR_NOT_SUPPORTED);
	struct node **link = &g->first, *last = NULL;
	while (*link != n) {
		last = *link;
		link = &last->next;
	}
	*link = n->next;
	if (g->last == n)
		g->last = last;
	g->n--;
	for (struct node *o = g->first; o; o = o->next) {
		uint32_t i = edge_find(o, n);

		if (i < o->n_after)
			edge_remove(o, i);
	}
	graph_node_free_locked(n);
	return leave(CUDA_SUCCESS);
}
