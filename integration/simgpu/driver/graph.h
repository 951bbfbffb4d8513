/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Graphs. A graph has nodes; an executable graph has a copy of it, and a
 * program: the steps of the nodes one after another. A change of the executable
 * graph makes a new program; launches that are on their way keep the old one.
 */
#ifndef SIMGPU_GRAPH_H
#define SIMGPU_GRAPH_H

#include "sim.h"

#define NODE_ATTRIBUTES 32 /* of kernel nodes; their numbers are below it */

/* Memory of an allocation node: an address for good, contents while it is live. */
struct graph_memory {
	uint32_t refs; /* nodes, steps, and being live */
	struct context *ctx;
	uint64_t at;
	size_t size;
	uint32_t scheduled; /* launches on their way that allocate it */
	bool live;          /* in the table of allocations */
	bool promised;      /* as submitted so far: allocated and not freed */
	bool freed_inside;  /* by a node of the graph that allocates it */
	struct graph_memory *next;
};

struct node {
	struct handle h;
	struct graph *graph;
	uint64_t id, origin;      /* origin: id of the node that it is a copy of */
	struct step step;         /* what it does, but for child graphs and batches */
	CUgraphNodeParams params; /* what it says of itself; pointers are the node's own */
	struct graph *child;
	CUlaunchAttributeValue *attributes; /* of a kernel node, by number; or NULL */
	bool disabled;            /* in an executable graph */
	struct node **after;
	CUgraphEdgeData *edges; /* one each of after */
	uint32_t n_after;
	struct node *next;
	bool seen; /* while a graph is walked */
};

struct user_object;
/* References to a user object that a graph holds. */
struct holding {
	struct user_object *object;
	uint32_t n;
	struct holding *next;
};

struct graph {
	struct handle h;
	struct node *first, *last;
	struct node *child_of; /* the node that owns it */
	uint32_t n;
	uint64_t id;
	bool has_memory;     /* allocation or free nodes, also in a child graph */
	struct exec *instance; /* the only one, of a graph with memory */
	struct holding *holds;
};

struct program {
	uint32_t refs;
	struct step *steps;
	uint32_t n, room;
	struct holding *holds; /* a launch on its way needs what its graph held */
};

struct exec {
	struct handle h;
	struct graph *copy;
	struct graph *source; /* of a graph with memory, as long as that is there */
	struct program *program;
	struct point last; /* launches of one exec do not overlap */
	uint64_t id;
	unsigned long long flags;
};

/* graph.c */
struct graph *graph_new_locked(void);
struct node *graph_node_new_locked(struct graph *g, struct node *const *after, const CUgraphEdgeData *edges, uint32_t n);
void graph_node_free_locked(struct node *n);
bool graph_is_captured_locked(const struct graph *g);
/* NULL: out of memory. */
struct graph *graph_copy_locked(const struct graph *g);
bool step_copy_locked(struct step *to, const struct step *from);
bool edge_add(struct node *to, struct node *from, const CUgraphEdgeData *edge);
struct node *graph_find_copy_locked(const struct graph *copy, uint64_t origin);

/* graph_params.c */
/* Makes the node one that does what p says. On failure it is as before. */
CUresult node_set_locked(struct context *ctx, struct node *n, const CUgraphNodeParams *p);
/* Makes the node one that does a captured step, and takes the step over, also on failure. */
bool node_set_step_locked(struct node *n, const struct step *st);
bool node_copy_locked(struct node *to, const struct node *from);
void node_clear_locked(struct node *n);

/* graph_exec.c */
CUresult exec_build_locked(struct exec *x);
void program_put_locked(struct program *p);

/* graph_memory.c */
CUresult graph_memory_new_locked(struct context *ctx, size_t size, struct graph_memory **out);
struct graph_memory *graph_memory_find_locked(uint64_t address);
static inline struct graph_memory *graph_memory_ref(struct graph_memory *m)
{
	m->refs++;
	return m;
}
void graph_memory_put_locked(struct graph_memory *m);
/* A launch is submitted, or over. */
CUresult graph_memory_begin_locked(const struct exec *x);
void graph_memory_end_locked(const struct program *p);
void graph_memory_place_locked(struct graph_memory *m);
void graph_memory_drop_locked(struct graph_memory *m);
/* It has left the table of allocations. */
void graph_memory_gone_locked(struct graph_memory *m);
/* A free outside graphs is submitted: whether that is allowed. */
bool graph_memory_release_locked(struct graph_memory *m);
CUresult graph_capture_alloc_locked(struct stream *s, size_t size, uint64_t *address);
CUresult graph_capture_free_locked(struct stream *s, uint64_t address);

/* user_object.c */
bool holding_copy_locked(struct holding **to, const struct holding *from);
void holding_free_locked(struct holding **list);

#endif
