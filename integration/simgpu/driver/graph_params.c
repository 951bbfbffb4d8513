/* SPDX-License-Identifier: Apache-2.0 */
/* What a node does: from parameters, from a captured step, copied. */
#include <stdlib.h>
#include <string.h>

#include "copy.h"
#include "graph.h"

#define MAX_MEM_OPS 256

_Static_assert(sizeof(CUDA_KERNEL_NODE_PARAMS) == sizeof(CUDA_KERNEL_NODE_PARAMS_v3), "one layout, two names");

/* What is being made of a node, until it is whole. */
struct making {
	struct step step;
	CUgraphNodeParams params;
	struct graph *child;
};

void node_clear_locked(struct node *n)
{
	step_release_locked(&n->step);
	if (n->params.type == CU_GRAPH_NODE_TYPE_KERNEL)
		free(n->params.kernel.kernelParams);
	else if (n->params.type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP)
		free(n->params.memOp.paramArray);
	if (n->child)
		graph_free_locked(n->child);
	free(n->attributes);
	n->child = NULL;
	n->attributes = NULL;
	n->params = (CUgraphNodeParams){ .type = CU_GRAPH_NODE_TYPE_EMPTY };
}

/* kernelParams as they can be asked for: pointers into the step. */
static bool kernel_params(struct making *m)
{
	const struct launch *l = &m->step.launch;
	CUDA_KERNEL_NODE_PARAMS_v3 *k = &m->params.kernel;

	k->extra = NULL;
	k->kernelParams = NULL;
	if (!l->n_params)
		return true;
	k->kernelParams = calloc(l->n_params, sizeof(void *));
	for (uint32_t i = 0; k->kernelParams && i < l->n_params; i++)
		k->kernelParams[i] = l->params + l->layout[i].offset;
	return k->kernelParams != NULL;
}

static void kernel_describe(struct making *m)
{
	const struct launch *l = &m->step.launch;

	m->params.type = CU_GRAPH_NODE_TYPE_KERNEL;
	m->params.kernel = (CUDA_KERNEL_NODE_PARAMS_v3){
		.func = (CUfunction)l->function, .gridDimX = l->grid[0], .gridDimY = l->grid[1], .gridDimZ = l->grid[2],
		.blockDimX = l->block[0], .blockDimY = l->block[1], .blockDimZ = l->block[2], .sharedMemBytes = l->shared,
		.ctx = l->function ? (CUcontext)l->function->module->ctx : NULL };
}

static CUresult make_kernel(struct context *ctx, struct making *m, const CUgraphNodeParams *p)
{
	const char *name;
	CUDA_KERNEL_NODE_PARAMS k;
	CUresult r;

	memcpy(&k, &p->kernel, sizeof(k));
	if (k.ctx)
		ctx = context_get_locked(k.ctx);
	if (!ctx)
		return CUDA_ERROR_INVALID_CONTEXT;
	r = launch_step_locked(ctx, &k, &m->step, &name);
	if (r)
		return r;
	kernel_describe(m);
	return kernel_params(m) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult make_copy(struct making *m, const CUgraphNodeParams *p)
{
	struct copy c;
	CUresult r;

	if (p->memcpy.flags || p->memcpy.reserved || p->memcpy.copyParams.reserved0 || p->memcpy.copyParams.reserved1)
		return CUDA_ERROR_INVALID_VALUE;
	r = copy_of_box_locked(&p->memcpy.copyParams, &c);
	if (r)
		return r;
	/* What a graph allocates is not there yet. */
	bool later = c.width && (graph_memory_find_locked(c.dst) || graph_memory_find_locked(c.src));
	if (!c.width || (!later && !copy_ok_locked(&c)))
		return CUDA_ERROR_INVALID_VALUE;
	m->step = (struct step){ .kind = STEP_COPY, .copy = c };
	return CUDA_SUCCESS;
}

static CUresult make_set(struct making *m, const CUgraphNodeParams *p)
{
	const CUDA_MEMSET_NODE_PARAMS_v2 *s = &p->memset;
	size_t row, n;

	if (__builtin_mul_overflow(s->width, s->elementSize, &row) || (s->elementSize != 1 && s->elementSize != 2 && s->elementSize != 4) || !s->width || !s->height ||
	    s->dst % s->elementSize || (s->height > 1 && s->pitch < row))
		return CUDA_ERROR_INVALID_VALUE;
	if (!copy_extent(1, 0, s->height, s->pitch, row, &n) || (!graph_memory_find_locked(s->dst) && !memory_at_locked(s->dst, n)))
		return CUDA_ERROR_INVALID_VALUE;
	m->step = (struct step){ .kind = STEP_SET, .set = {
		.dst = s->dst, .pitch = s->pitch, .width = s->width, .height = s->height, .value = s->value, .size = s->elementSize } };
	return CUDA_SUCCESS;
}

static CUresult make_host(struct making *m, const CUgraphNodeParams *p)
{
	if (!p->host.fn)
		return CUDA_ERROR_INVALID_VALUE;
	m->step = (struct step){ .kind = STEP_HOST, .host = { .fn = p->host.fn, .data = p->host.userData } };
	return CUDA_SUCCESS;
}

static CUresult make_event(struct making *m, enum step_kind kind, CUevent h)
{
	struct event *e = handle_get_locked(h, KIND_EVENT);

	if (!e)
		return CUDA_ERROR_INVALID_HANDLE;
	e->refs++;
	m->step = (struct step){ .kind = kind, .event = e, .external = true };
	return CUDA_SUCCESS;
}

static bool contains(const struct graph *outer, const struct graph *g)
{
	return outer == g || (outer->child_of && contains(outer->child_of->graph, g));
}

static CUresult make_child(struct making *m, const struct node *n, const CUgraphNodeParams *p)
{
	bool move = p->graph.ownership == CU_GRAPH_CHILD_GRAPH_OWNERSHIP_MOVE;
	struct graph *g = handle_get_locked(p->graph.graph, KIND_GRAPH);

	if (!g || (!move && p->graph.ownership != CU_GRAPH_CHILD_GRAPH_OWNERSHIP_CLONE) || graph_is_captured_locked(g))
		return CUDA_ERROR_INVALID_VALUE;
	if (contains(n->graph, g) || (move && (g->child_of || g->instance)))
		return CUDA_ERROR_INVALID_VALUE;
	if (!move && g->has_memory)
		return CUDA_ERROR_NOT_SUPPORTED;
	m->child = move ? g : graph_copy_locked(g);
	m->params.graph.graph = (CUgraph)m->child;
	return m->child ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* Memory of a graph has the GPU of its location, and belongs to a context on it. */
static CUresult make_alloc(struct context *ctx, struct making *m, const CUgraphNodeParams *p)
{
	const CUDA_MEM_ALLOC_NODE_PARAMS_v2 *a = &p->alloc;
	struct graph_memory *memory;
	CUresult r;

	if (!a->bytesize || a->poolProps.allocType != CU_MEM_ALLOCATION_TYPE_PINNED || a->poolProps.handleTypes != CU_MEM_HANDLE_TYPE_NONE ||
	    a->poolProps.location.type != CU_MEM_LOCATION_TYPE_DEVICE || !device_ok(a->poolProps.location.id) ||
	    (a->accessDescCount && !a->accessDescs))
		return CUDA_ERROR_INVALID_VALUE;
	if (a->poolProps.location.id != ctx->device)
		return CUDA_ERROR_NOT_SUPPORTED;
	r = graph_memory_new_locked(ctx, a->bytesize, &memory);
	if (r)
		return r;
	m->step = (struct step){ .kind = STEP_GRAPH_ALLOC, .memory = memory };
	m->params.alloc.dptr = memory->at;
	m->params.alloc.accessDescs = NULL; /* everybody may use it */
	m->params.alloc.accessDescCount = 0;
	return CUDA_SUCCESS;
}

static CUresult make_free(struct making *m, const struct node *n, const CUgraphNodeParams *p)
{
	struct graph_memory *memory = graph_memory_find_locked(p->free.dptr);
	bool inside = false;

	if (!memory || memory->at != p->free.dptr)
		return CUDA_ERROR_INVALID_VALUE;
	for (const struct node *o = n->graph->first; o; o = o->next) {
		if (o->step.kind == STEP_GRAPH_FREE && o->step.memory == memory)
			return CUDA_ERROR_INVALID_VALUE;
		inside |= o->step.kind == STEP_GRAPH_ALLOC && o->step.memory == memory;
	}
	if (!inside && memory->freed_inside)
		return CUDA_ERROR_INVALID_VALUE;
	memory->freed_inside |= inside;
	m->step = (struct step){ .kind = STEP_GRAPH_FREE, .memory = graph_memory_ref(memory) };
	return CUDA_SUCCESS;
}

static bool mem_op_ok(const CUstreamBatchMemOpParams *p)
{
	switch (p->operation) {
	case CU_STREAM_MEM_OP_WAIT_VALUE_32:
	case CU_STREAM_MEM_OP_WRITE_VALUE_32:
		return p->waitValue.address % 4 == 0 && memory_at_locked(p->waitValue.address, 4);
	case CU_STREAM_MEM_OP_WAIT_VALUE_64:
	case CU_STREAM_MEM_OP_WRITE_VALUE_64:
		return p->waitValue.address % 8 == 0 && memory_at_locked(p->waitValue.address, 8);
	default:
		return false;
	}
}

static CUresult make_mem_ops(struct making *m, const CUgraphNodeParams *p)
{
	unsigned n = p->memOp.count;

	if (!n || n > MAX_MEM_OPS || !p->memOp.paramArray || p->memOp.flags)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < n; i++)
		if (!mem_op_ok(&p->memOp.paramArray[i]))
			return CUDA_ERROR_INVALID_VALUE;
	CUstreamBatchMemOpParams *ops = malloc(n * sizeof(*ops));
	if (!ops)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(ops, p->memOp.paramArray, n * sizeof(*ops));
	m->params.memOp.paramArray = ops;
	return CUDA_SUCCESS;
}

static CUresult make(struct context *ctx, struct making *m, const struct node *n, const CUgraphNodeParams *p)
{
	*m = (struct making){ .params = *p };
	switch (p->type) {
	case CU_GRAPH_NODE_TYPE_KERNEL:
		return make_kernel(ctx, m, p);
	case CU_GRAPH_NODE_TYPE_MEMCPY:
		return make_copy(m, p);
	case CU_GRAPH_NODE_TYPE_MEMSET:
		return make_set(m, p);
	case CU_GRAPH_NODE_TYPE_HOST:
		return make_host(m, p);
	case CU_GRAPH_NODE_TYPE_GRAPH:
		return make_child(m, n, p);
	case CU_GRAPH_NODE_TYPE_EMPTY:
		return CUDA_SUCCESS;
	case CU_GRAPH_NODE_TYPE_WAIT_EVENT:
		return make_event(m, STEP_WAIT_EVENT, p->eventWait.event);
	case CU_GRAPH_NODE_TYPE_EVENT_RECORD:
		return make_event(m, STEP_RECORD, p->eventRecord.event);
	case CU_GRAPH_NODE_TYPE_MEM_ALLOC:
		return make_alloc(ctx, m, p);
	case CU_GRAPH_NODE_TYPE_MEM_FREE:
		return make_free(m, n, p);
	case CU_GRAPH_NODE_TYPE_BATCH_MEM_OP:
		return make_mem_ops(m, p);
	case CU_GRAPH_NODE_TYPE_CONDITIONAL:
	case CU_GRAPH_NODE_TYPE_EXT_SEMAS_SIGNAL:
	case CU_GRAPH_NODE_TYPE_EXT_SEMAS_WAIT:
	case CU_GRAPH_NODE_TYPE_MEMCPY_BATCH:
	case CU_GRAPH_NODE_TYPE_FABRIC_CPY_BATCH:
		return CUDA_ERROR_NOT_SUPPORTED;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static void put_in(struct node *n, const struct making *m)
{
	CUlaunchAttributeValue *attributes = n->attributes;

	n->attributes = NULL; /* they outlast a change of parameters */
	node_clear_locked(n);
	n->attributes = attributes;
	n->step = m->step;
	n->params = m->params;
	n->child = m->child;
	if (n->child)
		n->child->child_of = n;
	if (n->step.kind == STEP_GRAPH_ALLOC || n->step.kind == STEP_GRAPH_FREE || (n->child && n->child->has_memory))
		for (struct graph *g = n->graph; g; g = g->child_of ? g->child_of->graph : NULL)
			g->has_memory = true;
}

CUresult node_set_locked(struct context *ctx, struct node *n, const CUgraphNodeParams *p)
{
	struct making m;
	CUresult r = make(ctx, &m, n, p);

	if (r)
		step_release_locked(&m.step);
	else
		put_in(n, &m);
	return r;
}

static void describe_copy(CUDA_MEMCPY3D *p, const struct copy *c)
{
	bool from_device = memory_is_device(c->src), to_device = memory_is_device(c->dst);

	*p = (CUDA_MEMCPY3D){
		.srcMemoryType = from_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST, .srcPitch = c->src_pitch,
		.dstMemoryType = to_device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST, .dstPitch = c->dst_pitch,
		.srcHeight = c->height, .dstHeight = c->height,
		.WidthInBytes = c->width, .Height = c->height, .Depth = c->depth ? c->depth : 1 };
	if (from_device)
		p->srcDevice = c->src;
	else
		p->srcHost = (void *)(uintptr_t)c->src;
	if (to_device)
		p->dstDevice = c->dst;
	else
		p->dstHost = (void *)(uintptr_t)c->dst;
}

/* A value that is written or waited for is a batch of one. */
static bool describe_value(struct making *m)
{
	CUstreamBatchMemOpParams *op = calloc(1, sizeof(*op));
	bool wide = m->step.value.size == 8, wait = m->step.kind == STEP_WAIT_VALUE;

	if (!op)
		return false;
	op->operation = wait ? wide ? CU_STREAM_MEM_OP_WAIT_VALUE_64 : CU_STREAM_MEM_OP_WAIT_VALUE_32 :
			       wide ? CU_STREAM_MEM_OP_WRITE_VALUE_64 : CU_STREAM_MEM_OP_WRITE_VALUE_32;
	op->waitValue.address = m->step.value.address;
	op->waitValue.value64 = m->step.value.value;
	op->waitValue.flags = m->step.value.flags;
	m->params.type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
	m->params.memOp = (CUDA_BATCH_MEM_OP_NODE_PARAMS_v2){ .count = 1, .paramArray = op };
	m->step = (struct step){ .kind = STEP_NOTHING };
	return true;
}

static bool describe(struct making *m)
{
	const struct step *st = &m->step;

	m->params.type = CU_GRAPH_NODE_TYPE_EMPTY;
	switch (st->kind) {
	case STEP_KERNEL:
		kernel_describe(m);
		return kernel_params(m);
	case STEP_COPY:
		m->params.type = CU_GRAPH_NODE_TYPE_MEMCPY;
		describe_copy(&m->params.memcpy.copyParams, &st->copy);
		return true;
	case STEP_SET:
		m->params.type = CU_GRAPH_NODE_TYPE_MEMSET;
		m->params.memset = (CUDA_MEMSET_NODE_PARAMS_v2){ .dst = st->set.dst, .pitch = st->set.pitch, .value = st->set.value,
								 .elementSize = st->set.size, .width = st->set.width, .height = st->set.height };
		return true;
	case STEP_HOST:
		m->params.type = CU_GRAPH_NODE_TYPE_HOST;
		m->params.host = (CUDA_HOST_NODE_PARAMS_v2){ .fn = st->host.fn, .userData = st->host.data };
		return true;
	case STEP_RECORD:
		m->params.type = CU_GRAPH_NODE_TYPE_EVENT_RECORD;
		m->params.eventRecord.event = (CUevent)st->event;
		return true;
	case STEP_WAIT_EVENT:
		m->params.type = CU_GRAPH_NODE_TYPE_WAIT_EVENT;
		m->params.eventWait.event = (CUevent)st->event;
		return true;
	case STEP_WRITE:
	case STEP_WAIT_VALUE:
		return describe_value(m);
	default:
		return true;
	}
}

bool node_set_step_locked(struct node *n, const struct step *st)
{
	struct making m = { .step = *st };

	if (!describe(&m)) {
		step_release_locked(&m.step);
		return false;
	}
	put_in(n, &m);
	return true;
}

static bool copy_attributes(struct node *to, const struct node *from)
{
	size_t size = NODE_ATTRIBUTES * sizeof(*to->attributes);

	if (!from->attributes)
		return true;
	to->attributes = malloc(size);
	if (to->attributes)
		memcpy(to->attributes, from->attributes, size);
	return to->attributes != NULL;
}

bool node_copy_locked(struct node *to, const struct node *from)
{
	struct making m = { .params = from->params };

	if (!step_copy_locked(&m.step, &from->step))
		return false;
	if (from->child) {
		m.child = graph_copy_locked(from->child);
		m.params.graph.graph = (CUgraph)m.child;
		if (!m.child)
			return false;
	}
	bool ok = true;
	if (from->params.type == CU_GRAPH_NODE_TYPE_KERNEL) {
		ok = kernel_params(&m);
	} else if (from->params.type == CU_GRAPH_NODE_TYPE_BATCH_MEM_OP) {
		size_t size = from->params.memOp.count * sizeof(CUstreamBatchMemOpParams);

		m.params.memOp.paramArray = malloc(size);
		ok = m.params.memOp.paramArray != NULL;
		if (ok)
			memcpy(m.params.memOp.paramArray, from->params.memOp.paramArray, size);
	}
	if (!ok) {
		step_release_locked(&m.step);
		return false;
	}
	to->disabled = from->disabled;
	put_in(to, &m);
	return copy_attributes(to, from);
}
