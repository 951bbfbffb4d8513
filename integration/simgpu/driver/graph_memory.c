/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of graphs. A node's address is fixed when the node is made. A launch
 * takes the memory when it is submitted, so that it can fail then; what a GPU's
 * graphs have once taken stays theirs until it is trimmed.
 */
#include <stdlib.h>

#include "capture.h"
#include "graph.h"
#include "memory.h"

/* Bytes of one GPU. */
static struct {
	uint64_t used, used_high, reserved, reserved_high;
} pools[SIM_MAX_GPUS];

static struct graph_memory *all;

static uint64_t charge_of(size_t size)
{
	return (size + 511) / 512 * 512;
}

CUresult graph_memory_new_locked(struct context *ctx, size_t size, struct graph_memory **out)
{
	struct graph_memory *m = calloc(1, sizeof(*m));

	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (size > sim.mc.m->memory || !arena_alloc_locked(ctx->gpu, size, &m->at)) {
		free(m);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	m->ctx = ctx;
	m->size = size;
	m->refs = 1;
	m->next = all;
	all = m;
	*out = m;
	return CUDA_SUCCESS;
}

void graph_memory_put_locked(struct graph_memory *m)
{
	if (--m->refs > 0)
		return;
	for (struct graph_memory **p = &all; *p; p = &(*p)->next)
		if (*p == m) {
			*p = m->next;
			break;
		}
	arena_free_locked(m->ctx->gpu, m->at, m->size);
	free(m);
}

struct graph_memory *graph_memory_find_locked(uint64_t address)
{
	for (struct graph_memory *m = all; m; m = m->next)
		if (address >= m->at && address - m->at < m->size)
			return m;
	return NULL;
}

static bool use(struct graph_memory *m)
{
	uint32_t gpu = m->ctx->gpu;
	uint64_t used = pools[gpu].used + charge_of(m->size);

	if (used > pools[gpu].reserved) {
		if (!charge_locked(gpu, used - pools[gpu].reserved))
			return false;
		pools[gpu].reserved = used;
	}
	pools[gpu].used = used;
	if (used > pools[gpu].used_high)
		pools[gpu].used_high = used;
	if (pools[gpu].reserved > pools[gpu].reserved_high)
		pools[gpu].reserved_high = pools[gpu].reserved;
	return true;
}

static void unuse(struct graph_memory *m)
{
	pools[m->ctx->gpu].used -= charge_of(m->size);
}

static void trim(uint32_t gpu)
{
	machine_uncharge(&sim.mc, gpu, pools[gpu].reserved - pools[gpu].used);
	pools[gpu].reserved = pools[gpu].used;
}

static void unschedule(struct graph_memory *m)
{
	if (--m->scheduled == 0 && !m->live)
		unuse(m);
}

static bool allocates(const struct program *p, const struct graph_memory *m)
{
	for (uint32_t i = 0; i < p->n; i++)
		if (p->steps[i].kind == STEP_GRAPH_ALLOC && p->steps[i].memory == m)
			return true;
	return false;
}

/* Whether what it allocates is free, and what it frees is not. */
static bool may_begin(const struct exec *x)
{
	const struct program *p = x->program;

	for (uint32_t i = 0; i < p->n; i++) {
		const struct graph_memory *m = p->steps[i].memory;

		if (p->steps[i].kind == STEP_GRAPH_ALLOC && m->promised && !(x->flags & CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH))
			return false;
		if (p->steps[i].kind == STEP_GRAPH_FREE && !m->promised && !allocates(p, m))
			return false;
	}
	return true;
}

CUresult graph_memory_begin_locked(const struct exec *x)
{
	const struct program *p = x->program;
	uint32_t i = 0;

	if (!x->copy->has_memory)
		return CUDA_SUCCESS;
	if (!may_begin(x))
		return CUDA_ERROR_INVALID_VALUE;
	for (; i < p->n; i++) {
		struct graph_memory *m = p->steps[i].memory;

		if (p->steps[i].kind != STEP_GRAPH_ALLOC)
			continue;
		if (m->ctx->destroyed || (m->scheduled == 0 && !m->live && !use(m)))
			break;
		m->scheduled++;
	}
	if (i < p->n) {
		while (i-- > 0)
			if (p->steps[i].kind == STEP_GRAPH_ALLOC)
				unschedule(p->steps[i].memory);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	for (i = 0; i < p->n; i++) {
		if (p->steps[i].kind == STEP_GRAPH_ALLOC) {
			/* The program may name the memory from now on. */
			graph_memory_place_locked(p->steps[i].memory);
			p->steps[i].memory->promised = !p->steps[i].memory->freed_inside;
		} else if (p->steps[i].kind == STEP_GRAPH_FREE) {
			p->steps[i].memory->promised = false;
		}
	}
	return CUDA_SUCCESS;
}

void graph_memory_end_locked(const struct program *p)
{
	for (uint32_t i = 0; i < p->n; i++)
		if (p->steps[i].kind == STEP_GRAPH_ALLOC)
			unschedule(p->steps[i].memory);
}

void graph_memory_place_locked(struct graph_memory *m)
{
	if (m->live || m->ctx->destroyed)
		return;
	m->live = memory_place_locked(&(struct allocation){
		.base = m->at, .size = m->size, .kind = MEMORY_DEVICE, .ctx = m->ctx, .gpu = m->ctx->gpu, .device = m->ctx->device,
		.id = ++sim.next_id, .graph = m });
	if (m->live)
		graph_memory_ref(m);
}

void graph_memory_drop_locked(struct graph_memory *m)
{
	if (m->live)
		memory_free_locked(m->at);
}

void graph_memory_gone_locked(struct graph_memory *m)
{
	m->live = false;
	if (m->scheduled == 0)
		unuse(m);
	if (m->ctx->destroyed) {
		m->promised = false;
		trim(m->ctx->gpu);
	}
	graph_memory_put_locked(m);
}

bool graph_memory_release_locked(struct graph_memory *m)
{
	bool allowed = m->promised && !m->freed_inside;

	if (allowed)
		m->promised = false;
	return allowed;
}

/* What a node says of memory on a device. */
static CUgraphNodeParams alloc_params(CUdevice dev, size_t size)
{
	return (CUgraphNodeParams){ .type = CU_GRAPH_NODE_TYPE_MEM_ALLOC, .alloc = {
		.poolProps = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = dev } },
		.bytesize = size } };
}

/* Adds a node of these parameters behind what the stream has captured. */
static CUresult capture_node(struct stream *s, CUgraphNodeParams *p, struct node **out)
{
	struct capture *c = s->capture;
	CUresult r;

	if (c->invalid)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	struct node *n = graph_node_new_locked(c->graph, s->tail, NULL, s->n_tail);
	if (!n)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r = node_set_locked(s->ctx, n, p);
	if (!r && !capture_tail_locked(s, &n, 1, false))
		r = CUDA_ERROR_OUT_OF_MEMORY;
	if (r) /* the node stays, and does nothing */
		c->invalid = true;
	*out = n;
	return r;
}

CUresult graph_capture_alloc_locked(struct stream *s, size_t size, uint64_t *address)
{
	CUgraphNodeParams p = alloc_params(s->ctx->device, size);
	struct node *n;
	CUresult r;

	if (size == 0)
		return CUDA_ERROR_INVALID_VALUE;
	r = capture_node(s, &p, &n);
	if (!r)
		*address = n->params.alloc.dptr;
	return r;
}

CUresult graph_capture_free_locked(struct stream *s, uint64_t address)
{
	struct node *n;

	return capture_node(s, &(CUgraphNodeParams){ .type = CU_GRAPH_NODE_TYPE_MEM_FREE, .free = { .dptr = address } }, &n);
}

static CUresult enter_pool(CUdevice dev, uint32_t *gpu)
{
	CUresult r = enter();

	if (r)
		return r;
	if (!device_ok(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	*gpu = sim.device[dev];
	lock();
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGraphMemTrim(CUdevice dev)
{
	uint32_t gpu;
	CUresult r = enter_pool(dev, &gpu);

	if (r)
		return r;
	trim(gpu);
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuDeviceGetGraphMemAttribute(CUdevice dev, CUgraphMem_attribute a, void *value)
{
	uint32_t gpu;
	CUresult r = enter_pool(dev, &gpu);

	if (r)
		return r;
	const uint64_t values[] = {
		[CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT] = pools[gpu].used,
		[CU_GRAPH_MEM_ATTR_USED_MEM_HIGH] = pools[gpu].used_high,
		[CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT] = pools[gpu].reserved,
		[CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH] = pools[gpu].reserved_high,
	};
	if (!value || a >= sizeof(values) / sizeof(values[0]))
		return leave(CUDA_ERROR_INVALID_VALUE);
	*(cuuint64_t *)value = values[a];
	return leave(CUDA_SUCCESS);
}

/* The high marks can be set, to 0, which is to what is now. */
EXPORT CUresult cuDeviceSetGraphMemAttribute(CUdevice dev, CUgraphMem_attribute a, void *value)
{
	uint32_t gpu;
	CUresult r = enter_pool(dev, &gpu);

	if (r)
		return r;
	if (!value || *(cuuint64_t *)value)
		return leave(CUDA_ERROR_INVALID_VALUE);
	switch (a) {
	case CU_GRAPH_MEM_ATTR_USED_MEM_HIGH:
		pools[gpu].used_high = pools[gpu].used;
		return leave(CUDA_SUCCESS);
	case CU_GRAPH_MEM_ATTR_RESERVED_MEM_HIGH:
		pools[gpu].reserved_high = pools[gpu].reserved;
		return leave(CUDA_SUCCESS);
	default:
		return leave(CUDA_ERROR_INVALID_VALUE);
	}
}
