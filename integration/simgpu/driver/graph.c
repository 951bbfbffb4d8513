/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs: nodes with an order; instantiated to a list of steps. The calls are in graph_api.c. */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

struct graph *graph_new_locked(void)
{
	struct graph *g = calloc(1, sizeof(*g));

	if (!g)
		return NULL;
	g->id = ++sim.next_id;
	handle_add_locked(g, KIND_GRAPH);
	return g;
}

static void node_free(struct node *n)
{
	handle_remove_locked(n);
	step_release_locked(&n->step);
	free(n->after);
	free(n);
}

void graph_free_locked(struct graph *g)
{
	while (g->first) {
		struct node *n = g->first;

		g->first = n->next;
		node_free(n);
	}
	handle_remove_locked(g);
	free(g);
}

struct node *graph_add_locked(struct graph *g, CUgraphNodeType type, const struct step *step, struct node *const *after, uint32_t n)
{
	struct node *node = calloc(1, sizeof(*node));
	struct node **deps = calloc(n + 1, sizeof(*deps));

	if (!node || !deps) {
		struct step st = *step;

		step_release_locked(&st);
		free(node);
		free(deps);
		return NULL;
	}
	node->graph = g;
	node->type = type;
	node->step = *step;
	if (n)
		memcpy(deps, after, n * sizeof(*deps));
	node->after = deps;
	node->n_after = n;
	node->index = g->n++;
	if (g->last)
		g->last->next = node;
	else
		g->first = node;
	g->last = node;
	handle_add_locked(node, KIND_NODE);
	return node;
}

bool step_copy(struct step *to, const struct step *from)
{
	*to = *from;
	if (from->kind == STEP_KERNEL) {
		size_t layout = from->launch.n_params * sizeof(struct param);
		char *block = malloc(layout + from->launch.bytes + 1);

		if (!block)
			return false;
		memcpy(block, from->launch.layout, layout + from->launch.bytes);
		to->launch.layout = (struct param *)block;
		to->launch.params = (unsigned char *)block + layout;
	} else if (from->kind == STEP_COPY) {
		to->copy.staged = NULL; /* a graph reads the memory when it runs */
	}
	return true;
}

void exec_put_locked(struct exec *x)
{
	if (--x->refs > 0)
		return;
	for (uint32_t i = 0; i < x->n_steps; i++)
		step_release_locked(&x->steps[i]);
	if (x->last.stream)
		stream_put_locked(x->last.stream);
	free(x->steps);
	free(x);
}
