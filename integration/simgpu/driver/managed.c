/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was said of managed memory, page by page: pieces in the order of address,
 * each of pages with the same advice. Only what was said anything of has one.
 */
#include <stdlib.h>
#include <string.h>

#include "memory.h"

#define PAGE 4096ull

struct piece {
	uint64_t at, end;
	bool read_mostly;
	uint32_t accessed_by; /* a bit each device, the last one is the host */
	CUmemLocation preferred, prefetched; /* type INVALID: none */
	struct piece *next;
};

#define HOST_BIT (1u << 31)

static struct piece *pieces;

static bool split(struct piece **p, uint64_t at)
{
	struct piece *n = malloc(sizeof(*n));

	if (!n)
		return false;
	*n = **p;
	n->at = at;
	(*p)->end = at;
	(*p)->next = n;
	return true;
}

/* Pieces that are exactly the range from here on: the first of them, or NULL. */
static struct piece *cover(uint64_t from, uint64_t end)
{
	struct piece **p = &pieces, *first = NULL;

	while (from < end) {
		while (*p && (*p)->end <= from)
			p = &(*p)->next;
		if (*p && (*p)->at < from) {
			if (!split(p, from))
				return NULL;
			continue;
		}
		if (!*p || (*p)->at > from) {
			struct piece *n = calloc(1, sizeof(*n));

			if (!n)
				return NULL;
			n->at = from;
			n->end = *p && (*p)->at < end ? (*p)->at : end;
			n->next = *p;
			*p = n;
		}
		if ((*p)->end > end && !split(p, end))
			return NULL;
		first = first ? first : *p;
		from = (*p)->end;
	}
	return first;
}

void managed_forget_locked(uint64_t base, size_t size)
{
	for (struct piece **p = &pieces; *p;) {
		struct piece *d = *p;

		if (d->end <= base || d->at >= base + size) {
			p = &d->next;
			continue;
		}
		*p = d->next;
		free(d);
	}
}

void managed_prefetched_locked(uint64_t at, size_t n, CUmemLocation to)
{
	uint64_t from = at / PAGE * PAGE, end = (at + n + PAGE - 1) / PAGE * PAGE;

	for (struct piece *p = cover(from, end); p && p->at < end; p = p->next)
		p->prefetched = to;
}

static uint32_t bit_of(const CUmemLocation *l)
{
	return l->type == CU_MEM_LOCATION_TYPE_DEVICE ? 1u << l->id : HOST_BIT;
}

static void set(struct piece *p, CUmem_advise advice, const CUmemLocation *at)
{
	switch (advice) {
	case CU_MEM_ADVISE_SET_READ_MOSTLY:
	case CU_MEM_ADVISE_UNSET_READ_MOSTLY:
		p->read_mostly = advice == CU_MEM_ADVISE_SET_READ_MOSTLY;
		break;
	case CU_MEM_ADVISE_SET_PREFERRED_LOCATION:
		p->preferred = *at;
		break;
	case CU_MEM_ADVISE_UNSET_PREFERRED_LOCATION:
		p->preferred = (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_INVALID };
		break;
	case CU_MEM_ADVISE_SET_ACCESSED_BY:
		p->accessed_by |= bit_of(at);
		break;
	case CU_MEM_ADVISE_UNSET_ACCESSED_BY:
		p->accessed_by &= ~bit_of(at);
		break;
	}
}

/* Whether all of it is managed memory. */
static bool managed(uint64_t at, size_t n)
{
	const struct allocation *a = memory_find_locked(at);

	return n && a && a->kind == MEMORY_MANAGED && n <= a->size - (at - a->base);
}

static bool needs_location(CUmem_advise advice)
{
	return advice == CU_MEM_ADVISE_SET_PREFERRED_LOCATION || advice == CU_MEM_ADVISE_SET_ACCESSED_BY ||
	       advice == CU_MEM_ADVISE_UNSET_ACCESSED_BY;
}

static CUresult advise(CUdeviceptr at, size_t n, CUmem_advise advice, CUmemLocation to)
{
	uint64_t from = at / PAGE * PAGE, end = (at + n + PAGE - 1) / PAGE * PAGE;
	CUresult r = enter();

	if (r)
		return r;
	if (advice < CU_MEM_ADVISE_SET_READ_MOSTLY || advice > CU_MEM_ADVISE_UNSET_ACCESSED_BY)
		return CUDA_ERROR_INVALID_VALUE;
	r = needs_location(advice) ? location_check(&to) : CUDA_SUCCESS;
	if (r)
		return r;
	lock();
	if (!managed(at, n))
		return leave(CUDA_ERROR_INVALID_VALUE);
	struct piece *p = cover(from, end);
	if (!p)
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	for (; p && p->at < end; p = p->next)
		set(p, advice, &to);
	return leave(CUDA_SUCCESS);
}

static CUmemLocation of_device(CUdevice dev)
{
	return (CUmemLocation){ .type = dev == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE,
				.id = dev == CU_DEVICE_CPU ? 0 : dev };
}

EXPORT CUresult cuMemAdvise(CUdeviceptr p, size_t n, CUmem_advise advice, CUdevice dev)
{
	return advise(p, n, advice, of_device(dev));
}

EXPORT CUresult cuMemAdvise_v2(CUdeviceptr p, size_t n, CUmem_advise advice, CUmemLocation at)
{
	return advise(p, n, advice, at);
}

/* What all pages of a range have in common. */
struct common {
	bool read_mostly;
	uint32_t accessed_by;
	CUmemLocation preferred, prefetched;
};

static void agree(CUmemLocation *all, const CUmemLocation *one)
{
	if (all->type != one->type || all->id != one->id)
		*all = (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_INVALID };
}

static struct common common_of(uint64_t at, size_t n)
{
	static const struct piece nothing;
	struct common c = { 0 };
	bool first = true;
	uint64_t end = at + n;
	const struct piece *p = pieces;

	while (at < end) {
		while (p && p->end <= at)
			p = p->next;
		const struct piece *here = p && p->at <= at ? p : &nothing;
		uint64_t until = here == p ? p->end : p ? p->at : end;

		if (first)
			c = (struct common){ here->read_mostly, here->accessed_by, here->preferred, here->prefetched };
		c.read_mostly &= here->read_mostly;
		c.accessed_by &= here->accessed_by;
		agree(&c.preferred, &here->preferred);
		agree(&c.prefetched, &here->prefetched);
		first = false;
		at = until;
	}
	return c;
}

static int as_device(const CUmemLocation *l)
{
	if (l->type == CU_MEM_LOCATION_TYPE_INVALID)
		return CU_DEVICE_INVALID;
	return l->type == CU_MEM_LOCATION_TYPE_DEVICE ? l->id : CU_DEVICE_CPU;
}

static void accessed_by(const struct common *c, int *to, size_t n)
{
	size_t i = 0;

	for (int d = 0; d < sim.n_devices && i < n; d++)
		if (c->accessed_by & 1u << d)
			to[i++] = d;
	if (c->accessed_by & HOST_BIT && i < n)
		to[i++] = CU_DEVICE_CPU;
	while (i < n)
		to[i++] = CU_DEVICE_INVALID;
}

static CUresult range(void *data, size_t size, CUmem_range_attribute attr, const struct common *c)
{
	if (!data || !size || (attr == CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY ? size % sizeof(int) != 0 : size != sizeof(int)))
		return CUDA_ERROR_INVALID_VALUE;
	int *out = data;
	switch (attr) {
	case CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY:
		*out = c->read_mostly;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION:
		*out = as_device(&c->preferred);
		break;
	case CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY:
		accessed_by(c, out, size / sizeof(int));
		break;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION:
		*out = as_device(&c->prefetched);
		break;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE:
		*out = (int)c->preferred.type;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_ID:
		*out = c->preferred.id;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_TYPE:
		*out = (int)c->prefetched.type;
		break;
	case CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION_ID:
		*out = c->prefetched.id;
		break;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemRangeGetAttributes(void **data, size_t *sizes, CUmem_range_attribute *attrs, size_t n, CUdeviceptr at, size_t count)
{
	CUresult r = enter();

	if (r)
		return r;
	if (!data || !sizes || !attrs || n == 0)
		return CUDA_ERROR_INVALID_VALUE;
	lock();
	if (!managed(at, count))
		return leave(CUDA_ERROR_INVALID_VALUE);
	struct common c = common_of(at, count);
	for (size_t i = 0; i < n && !r; i++)
		r = range(data[i], sizes[i], attrs[i], &c);
	return leave(r);
}

EXPORT CUresult cuMemRangeGetAttribute(void *data, size_t size, CUmem_range_attribute attr, CUdeviceptr at, size_t count)
{
	return cuMemRangeGetAttributes(&data, &size, &attr, 1, at, count);
}
