/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory of pools. A pool takes large chunks of the GPU and gives out parts
 * of them. A part that is freed can be given out again at once in the stream that
 * freed it, whose order keeps the two uses apart; to others when the free is
 * reached. What is unused goes back to the GPU when the host waits for something,
 * as far as the pool holds more than its threshold.
 */
#include <stdlib.h>
#include <unistd.h>

#include "pool.h"

#define CHUNK (32ull << 20)
#define PART 512ull

struct pool *pools;

static uint64_t round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

static void high(uint64_t *mark, uint64_t now)
{
	if (*mark < now)
		*mark = now;
}

static void drop_pending(struct pending **at)
{
	struct pending *d = *at;

	*at = d->next;
	stream_put_locked(d->point.stream);
	free(d);
}

/* Frees that their streams have reached. */
static void reached(struct pool *p)
{
	for (struct pending **d = &p->pending; *d;) {
		if (!point_done(&(*d)->point)) {
			d = &(*d)->next;
			continue;
		}
		extents_give(&p->unused, (*d)->at, (*d)->size);
		drop_pending(d);
	}
}

static bool take_pending(struct pool *p, uint64_t n, const struct stream *s, uint64_t *at)
{
	struct pending **d = &p->pending;

	while (*d && ((*d)->point.stream != s || (*d)->size < n))
		d = &(*d)->next;
	if (!*d)
		return false;
	*at = (*d)->at;
	(*d)->at += n;
	(*d)->size -= n;
	if ((*d)->size == 0)
		drop_pending(d);
	return true;
}

static bool grow_by(struct pool *p, uint64_t n)
{
	struct chunk *c;

	if (p->props.maxSize && n > p->props.maxSize - p->reserved)
		return false;
	c = calloc(1, sizeof(*c));
	if (!c || !charge_locked(p->gpu, n)) {
		free(c);
		return false;
	}
	if (!arena_alloc_locked(p->gpu, n, &c->at) || !extents_give(&p->unused, c->at, n)) {
		machine_uncharge(&sim.mc, p->gpu, n);
		free(c);
		return false;
	}
	c->size = n;
	c->next = p->chunks;
	p->chunks = c;
	p->reserved += n;
	high(&p->reserved_high, p->reserved);
	return true;
}

static bool grow(struct pool *p, uint64_t n)
{
	if (n > sim.mc.m->memory)
		return false; /* and no rounding of it */
	/* A GPU that is nearly full has no room for a whole chunk, but for this. */
	return grow_by(p, round_up(n, CHUNK)) || grow_by(p, round_up(n, VMM_PAGE));
}

CUresult pool_alloc_locked(struct pool *p, size_t size, struct stream *s, uint64_t *address)
{
	uint64_t n = round_up(size, PART);
	struct allocation a = {
		.size = size, .kind = MEMORY_POOL, .ctx = s->ctx, .gpu = p->gpu, .device = p->device, .id = ++sim.next_id, .pool = p,
	};

	if (size == 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (n < size)
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (p->opportunistic)
		reached(p);
	if (!take_pending(p, n, s, &a.base) && !extents_take(&p->unused, n, PART, &a.base) &&
	    !(grow(p, n) && extents_take(&p->unused, n, PART, &a.base)))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!memory_place_locked(&a)) {
		extents_give(&p->unused, a.base, n);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	p->live++;
	p->used += n;
	high(&p->used_high, p->used);
	*address = a.base;
	return CUDA_SUCCESS;
}

/* Usable again when the stream has come so far; without a stream at once. */
void pool_free_locked(struct allocation *a, struct stream *s, uint64_t seq)
{
	struct pool *p = a->pool;
	uint64_t at = a->base, n = round_up(a->size, PART);
	struct pending *d = s && s->completed < seq ? calloc(1, sizeof(*d)) : NULL;

	memory_remove_locked(a);
	p->live--;
	p->used -= n;
	if (d) {
		*d = (struct pending){ at, n, { stream_ref(s), seq }, p->pending };
		p->pending = d;
	} else {
		extents_give(&p->unused, at, n);
	}
	pool_end_locked(p);
}

bool pool_trim_locked(struct pool *p, uint64_t keep)
{
	bool gave = false;

	reached(p);
	for (struct chunk **c = &p->chunks; *c && p->reserved > keep;) {
		struct chunk *d = *c;

		if (p->reserved - d->size < keep || !extents_take_at(&p->unused, d->at, d->size)) {
			c = &d->next;
			continue;
		}
		*c = d->next;
		arena_free_locked(p->gpu, d->at, d->size);
		machine_uncharge(&sim.mc, p->gpu, d->size);
		p->reserved -= d->size;
		free(d);
		gave = true;
	}
	return gave;
}

bool pool_trim_all_locked(uint32_t gpu)
{
	bool gave = false;

	for (struct pool *p = pools, *next; p; p = next) {
		next = p->next;
		if (p->gpu != gpu || p->imported)
			continue;
		gave |= pool_trim_locked(p, 0);
		pool_end_locked(p);
	}
	return gave;
}

void pool_settle_locked(void)
{
	for (struct pool *p = pools, *next; p; p = next) {
		next = p->next;
		reached(p);
		if (p->reserved > p->threshold)
			pool_trim_locked(p, p->threshold);
		pool_end_locked(p);
	}
}

void pool_end_locked(struct pool *p)
{
	if (!p->destroyed || p->live || p->pending)
		return;
	pool_trim_locked(p, 0);
	for (struct pool **q = &pools; *q; q = &(*q)->next)
		if (*q == p) {
			*q = p->next;
			break;
		}
	if (p->fd >= 0)
		close(p->fd);
	free(p->unused.e);
	free(p);
}

void *pool_at_locked(uint64_t address, size_t n)
{
	for (const struct pool *p = pools; p; p = p->next)
		for (const struct chunk *c = p->chunks; c; c = c->next)
			if (address >= c->at && address - c->at < c->size && n <= c->size - (address - c->at))
				return arena_host(address);
	return NULL;
}

void pool_pointer_end_locked(struct pool *p)
{
	p->live--;
	pool_end_locked(p);
}

CUmemoryPool pool_handle(const struct pool *p)
{
	return p->destroyed ? NULL : (CUmemoryPool)(uintptr_t)p;
}

CUmemAllocationHandleType pool_handle_types(const struct pool *p)
{
	return p->props.handleTypes;
}
