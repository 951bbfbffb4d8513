/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs: nodes with an order. */
#include <stdlib.h>
#include <string.h>

#include "graph.h"

struct graph *graph_new_locked(void)
{
	struct graph *g = calloc(1, sizeof(*g));

	if (!g)
		return NULL;
	g->id = ++sim.next_id;
	handle_add_locked(g, KIND_GRAPH);
	return g;
}

void graph_node_free_locked(struct node *n)
{
	handle_remove_locked(n);
	node_clear_locked(n);
	free(n->after);
	free(n->edges);
	free(n);
}

void graph_free_locked(struct graph *g)
{
	while (g->first) {
		struct node *n = g->first;

		g->first = n->next;
		graph_node_free_locked(n);
	}
	if (g->instance)
		g->instance->source = NULL;
	holding_free_locked(&g->holds);
	handle_remove_locked(g);
	free(g);
}

/* Whether a stream captures into it now: its nodes are the capture's then. */
bool graph_is_captured_locked(const struct graph *g)
{
	for (const struct capture *c = sim.captures; c; c = c->next)
		if (c->graph == g)
			return true;
	return false;
}

bool edge_add(struct node *to, struct node *from, const CUgraphEdgeData *edge)
{
	struct node **after = realloc(to->after, (to->n_after + 1) * sizeof(*after));

	if (!after)
		return false;
	to->after = after;
	CUgraphEdgeData *edges = realloc(to->edges, (to->n_after + 1) * sizeof(*edges));
	if (!edges)
		return false;
	to->edges = edges;
	after[to->n_after] = from;
	edges[to->n_after++] = edge ? *edge : (CUgraphEdgeData){ 0 };
	return true;
}

struct node *graph_node_new_locked(struct graph *g, struct node *const *after, const CUgraphEdgeData *edges, uint32_t n)
{
	struct node *node = calloc(1, sizeof(*node));

	if (!node)
		return NULL;
	node->graph = g;
	node->id = ++sim.next_id;
	node->params.type = CU_GRAPH_NODE_TYPE_EMPTY;
	for (uint32_t i = 0; i < n; i++)
		if (!edge_add(node, after[i], edges ? &edges[i] : NULL)) {
			free(node->after);
			free(node->edges);
			free(node);
			return NULL;
		}
	g->n++;
	if (g->last)
		g->last->next = node;
	else
		g->first = node;
	g->last = node;
	handle_add_locked(node, KIND_NODE);
	return node;
}

struct node *graph_find_copy_locked(const struct graph *copy, uint64_t origin)
{
	for (struct node *n = copy->first; n; n = n->next) {
		struct node *inside = n->child ? graph_find_copy_locked(n->child, origin) : NULL;

		if (n->origin == origin || inside)
			return inside ? inside : n;
	}
	return NULL;
}

static bool copy_nodes(struct graph *to, const struct graph *from)
{
	for (const struct node *n = from->first; n; n = n->next) {
		struct node *c = graph_node_new_locked(to, NULL, NULL, 0);

		if (!c)
			return false;
		c->origin = n->id;
		if (!node_copy_locked(c, n))
			return false;
	}
	return true;
}

/* Walks both: the copy has the nodes in the same order. */
static bool copy_edges(struct graph *to, const struct graph *from)
{
	struct node *c = to->first;

	for (const struct node *n = from->first; n; n = n->next, c = c->next)
		for (uint32_t i = 0; i < n->n_after; i++) {
			struct node *before = to->first;

			while (before->origin != n->after[i]->id)
				before = before->next;
			if (!edge_add(c, before, &n->edges[i]))
				return false;
		}
	return true;
}

struct graph *graph_copy_locked(const struct graph *g)
{
	struct graph *c = graph_new_locked();

	if (!c)
		return NULL;
	c->has_memory = g->has_memory;
	if (copy_nodes(c, g) && copy_edges(c, g) && holding_copy_locked(&c->holds, g->holds))
		return c;
	graph_free_locked(c);
	return NULL;
}

bool step_copy_locked(struct step *to, const struct step *from)
{
	*to = *from;
	switch (from->kind) {
	case STEP_KERNEL: {
		size_t layout = from->launch.n_params * sizeof(struct param);
		char *block = malloc(layout + from->launch.bytes + 1);

		if (!block) {
			to->kind = STEP_NOTHING;
			return false;
		}
		memcpy(block, from->launch.layout, layout + from->launch.bytes);
		to->launch.layout = (struct param *)block;
		to->launch.params = (unsigned char *)block + layout;
		break;
	}
	case STEP_COPY:
		to->copy.staged = NULL; /* a graph reads the memory when it runs */
		break;
	case STEP_RECORD:
	case STEP_WAIT_EVENT:
		to->event->refs++;
		break;
	case STEP_GRAPH_ALLOC:
	case STEP_GRAPH_FREE:
		graph_memory_ref(to->memory);
		break;
	default:
		break;
	}
	return true;
}
