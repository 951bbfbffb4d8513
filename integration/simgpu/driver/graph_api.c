/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a graph, and what is asked of its shape. */
#include <stdio.h>
#include <stdlib.h>

#include "graph.h"

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

static CUresult enter_node(CUgraphNode h, struct node **n)
{
	CUresult r = enter();

	if (r)
		return r;
	lock();
	*n = handle_get_locked(h, KIND_NODE);
	return *n ? CUDA_SUCCESS : leave(CUDA_ERROR_INVALID_VALUE);
}

/* A child graph is its node's, a graph that is being captured the capture's. */
EXPORT CUresult cuGraphDestroy(CUgraph h)
{
	struct graph *g;
	CUresult r = enter_graph(h, &g);

	if (r)
		return r;
	if (g->child_of || graph_is_captured_locked(g))
		return leave(CUDA_ERROR_INVALID_VALUE);
	graph_free_locked(g);
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuGraphClone(CUgraph *out, CUgraph h)
{
	struct graph *g;
	CUresult r = enter_graph(h, &g);

	if (r)
		return r;
	if (!out || graph_is_captured_locked(g))
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (g->has_memory)
		return leave(CUDA_ERROR_NOT_SUPPORTED);
	struct graph *c = graph_copy_locked(g);
	if (!c)
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	*out = (CUgraph)c;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuGraphNodeFindInClone(CUgraphNode *out, CUgraphNode original, CUgraph clone)
{
	struct graph *g;
	CUresult r = enter_graph(clone, &g);

	if (r)
		return r;
	const struct node *n = handle_get_locked(original, KIND_NODE);
	struct node *found = out && n ? graph_find_copy_locked(g, n->id) : NULL;
	if (!found)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*out = (CUgraphNode)found;
	return leave(CUDA_SUCCESS);
}

/* Lists are given up to their room; what is left of it is filled with NULL. */
struct list {
	CUgraphNode *to, *from;
	CUgraphEdgeData *edges;
	size_t room, n;
	bool lossy; /* there are edges with data, and nobody takes it */
};

static struct list list_of(CUgraphNode *to, CUgraphNode *from, CUgraphEdgeData *edges, const size_t *room)
{
	return (struct list){ .to = to, .from = from, .edges = edges, .room = to && room ? *room : 0 };
}

static void list_add(struct list *l, struct node *to, struct node *from, const CUgraphEdgeData *edge)
{
	if (l->n < l->room) {
		l->to[l->n] = (CUgraphNode)to;
		if (l->from)
			l->from[l->n] = (CUgraphNode)from;
		if (l->edges)
			l->edges[l->n] = *edge;
	}
	l->lossy |= edge && (edge->from_port || edge->to_port || edge->type);
	l->n++;
}

static CUresult list_end(struct list *l, size_t *n, bool takes_edges)
{
	if (!n)
		return CUDA_ERROR_INVALID_VALUE;
	if (l->lossy && !takes_edges)
		return CUDA_ERROR_LOSSY_QUERY;
	for (size_t i = l->n; i < l->room; i++) {
		l->to[i] = NULL;
		if (l->from)
			l->from[i] = NULL;
	}
	*n = l->room && l->room < l->n ? l->room : l->n;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGraphGetNodes(CUgraph h, CUgraphNode *nodes, size_t *n)
{
	struct list l = list_of(nodes, NULL, NULL, n);
	struct graph *g;
	CUresult r = enter_graph(h, &g);

	if (r)
		return r;
	for (struct node *p = g->first; p; p = p->next)
		list_add(&l, p, NULL, NULL);
	return leave(list_end(&l, n, true));
}

EXPORT CUresult cuGraphGetRootNodes(CUgraph h, CUgraphNode *nodes, size_t *n)
{
	struct list l = list_of(nodes, NULL, NULL, n);
	struct graph *g;
	CUresult r = enter_graph(h, &g);

	if (r)
		return r;
	for (struct node *p = g->first; p; p = p->next)
		if (p->n_after == 0)
			list_add(&l, p, NULL, NULL);
	return leave(list_end(&l, n, true));
}

static CUresult get_edges(CUgraph h, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edges, size_t *n, bool takes_edges)
{
	struct list l = list_of(to, from, edges, n);
	struct graph *g;
	CUresult r;

	if ((from == NULL) != (to == NULL))
		return CUDA_ERROR_INVALID_VALUE;
	r = enter_graph(h, &g);
	if (r)
		return r;
	for (struct node *p = g->first; p; p = p->next)
		for (uint32_t i = 0; i < p->n_after; i++)
			list_add(&l, p, p->after[i], &p->edges[i]);
	return leave(list_end(&l, n, takes_edges && (edges || !to)));
}

EXPORT CUresult cuGraphGetEdges(CUgraph h, CUgraphNode *from, CUgraphNode *to, size_t *n)
{
	return get_edges(h, from, to, NULL, n, false);
}

EXPORT CUresult cuGraphGetEdges_v2(CUgraph h, CUgraphNode *from, CUgraphNode *to, CUgraphEdgeData *edges, size_t *n)
{
	return get_edges(h, from, to, edges, n, true);
}

static CUresult get_dependencies(CUgraphNode h, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *n, bool takes_edges)
{
	struct list l = list_of(nodes, NULL, edges, n);
	struct node *node;
	CUresult r = enter_node(h, &node);

	if (r)
		return r;
	for (uint32_t i = 0; i < node->n_after; i++)
		list_add(&l, node->after[i], NULL, &node->edges[i]);
	return leave(list_end(&l, n, takes_edges && (edges || !nodes)));
}

EXPORT CUresult cuGraphNodeGetDependencies(CUgraphNode h, CUgraphNode *nodes, size_t *n)
{
	return get_dependencies(h, nodes, NULL, n, false);
}

EXPORT CUresult cuGraphNodeGetDependencies_v2(CUgraphNode h, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *n)
{
	return get_dependencies(h, nodes, edges, n, true);
}

static CUresult get_dependents(CUgraphNode h, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *n, bool takes_edges)
{
	struct list l = list_of(nodes, NULL, edges, n);
	struct node *node;
	CUresult r = enter_node(h, &node);

	if (r)
		return r;
	for (struct node *p = node->graph->first; p; p = p->next)
		for (uint32_t i = 0; i < p->n_after; i++)
			if (p->after[i] == node)
				list_add(&l, p, NULL, &p->edges[i]);
	return leave(list_end(&l, n, takes_edges && (edges || !nodes)));
}

EXPORT CUresult cuGraphNodeGetDependentNodes(CUgraphNode h, CUgraphNode *nodes, size_t *n)
{
	return get_dependents(h, nodes, NULL, n, false);
}

EXPORT CUresult cuGraphNodeGetDependentNodes_v2(CUgraphNode h, CUgraphNode *nodes, CUgraphEdgeData *edges, size_t *n)
{
	return get_dependents(h, nodes, edges, n, true);
}

#define NODE_GET(NAME, TYPE, VALUE)                                                                                    \
	EXPORT CUresult NAME(CUgraphNode h, TYPE *out)                                                                 \
	{                                                                                                              \
		struct node *n;                                                                                        \
		CUresult r = enter_node(h, &n);                                                                        \
                                                                                                                       \
		if (r)                                                                                                 \
			return r;                                                                                      \
		if (!out)                                                                                              \
			return leave(CUDA_ERROR_INVALID_VALUE);                                                        \
		*out = (TYPE)(VALUE);                                                                                  \
		return leave(CUDA_SUCCESS);                                                                            \
	}

NODE_GET(cuGraphNodeGetType, CUgraphNodeType, n->params.type)
NODE_GET(cuGraphNodeGetContainingGraph, CUgraph, n->graph)
NODE_GET(cuGraphNodeGetLocalId, unsigned int, n->id)
NODE_GET(cuGraphNodeGetToolsId, unsigned long long, n->id)

EXPORT CUresult cuGraphGetId(CUgraph h, unsigned int *id)
{
	struct graph *g;
	CUresult r = enter_graph(h, &g);

	if (r)
		return r;
	if (!id)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*id = (unsigned)g->id;
	return leave(CUDA_SUCCESS);
}

static void write_dot(const struct graph *g, FILE *f)
{
	static const char *const names[] = {
		"KERNEL", "MEMCPY", "MEMSET", "HOST", "GRAPH", "EMPTY", "WAIT_EVENT", "EVENT_RECORD", "EXT_SEMAS_SIGNAL",
		"EXT_SEMAS_WAIT", "MEM_ALLOC", "MEM_FREE", "BATCH_MEM_OP",
	};

	for (const struct node *n = g->first; n; n = n->next) {
		fprintf(f, "\"n%llu\" [label=\"%s\"];\n", (unsigned long long)n->id, names[n->params.type]);
		for (uint32_t i = 0; i < n->n_after; i++)
			fprintf(f, "\"n%llu\" -> \"n%llu\";\n", (unsigned long long)n->after[i]->id, (unsigned long long)n->id);
		if (n->child) {
			fprintf(f, "subgraph \"cluster_%llu\" {\n", (unsigned long long)n->child->id);
			write_dot(n->child, f);
			fputs("}\n", f);
		}
	}
}

/* Types and edges; the flags ask for more, which is not there. */
EXPORT CUresult cuGraphDebugDotPrint(CUgraph h, const char *path, unsigned int flags)
{
	struct graph *g;
	CUresult r = enter_graph(h, &g);

	(void)flags;
	if (r)
		return r;
	FILE *f = path ? fopen(path, "we") : NULL;
	if (!f)
		return leave(path ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_ERROR_INVALID_VALUE);
	fprintf(f, "digraph \"graph_%llu\" {\n", (unsigned long long)g->id);
	write_dot(g, f);
	fputs("}\n", f);
	bool failed = ferror(f);
	return leave(fclose(f) || failed ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS);
}
