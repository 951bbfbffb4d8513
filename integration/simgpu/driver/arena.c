/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device addresses. Of each GPU a process sees one range of addresses that it
 * may not touch itself (PROT_NONE: a program that reads device memory faults, as
 * on hardware); what is in there lies at a fixed distance in a second range.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "sim.h"

#define ALIGN 512ull
#define BIG (2ull << 20)

struct extent {
	uint64_t at, size; /* offset in the range */
};

static struct arena {
	uint64_t base, size;
	unsigned char *behind;
	struct extent *unused; /* in the order of address */
	size_t n, room;
} arenas[SIM_MAX_GPUS];

static uint64_t round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

static bool insert_extent(struct arena *a, size_t i, struct extent e)
{
	if (a->n == a->room) {
		size_t room = a->room ? a->room * 2 : 64;
		struct extent *p = realloc(a->unused, room * sizeof(*p));

		if (!p)
			return false;
		a->unused = p;
		a->room = room;
	}
	memmove(&a->unused[i + 1], &a->unused[i], (a->n - i) * sizeof(e));
	a->unused[i] = e;
	a->n++;
	return true;
}

static bool arena_map(struct arena *a, uint64_t size)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
	/* Twice the memory: room enough although first fit leaves holes. */
	uint64_t n = round_up(size * 2, BIG) + BIG;
	char *seen = mmap(NULL, n, PROT_NONE, flags, -1, 0);
	char *behind = mmap(NULL, n, PROT_READ | PROT_WRITE, flags, -1, 0);

	if (seen == MAP_FAILED || behind == MAP_FAILED)
		return false;
	madvise(behind, n, MADV_DONTDUMP);
	madvise(behind, n, MADV_DONTFORK);
	a->base = round_up((uint64_t)(uintptr_t)seen, BIG);
	a->behind = (unsigned char *)behind;
	a->size = n - BIG;
	return insert_extent(a, 0, (struct extent){ 0, a->size });
}

bool arena_alloc_locked(uint32_t gpu, size_t size, uint64_t *address)
{
	struct arena *a = &arenas[gpu];

	if (!a->size && !arena_map(a, sim.mc.m->memory))
		return false;
	size = round_up(size, ALIGN);
	for (size_t i = 0; i < a->n; i++) {
		struct extent *e = &a->unused[i];

		if (e->size < size)
			continue;
		*address = a->base + e->at;
		e->at += size;
		e->size -= size;
		if (e->size == 0) {
			a->n--;
			memmove(e, e + 1, (a->n - i) * sizeof(*e));
		}
		return true;
	}
	return false;
}

void arena_free_locked(uint32_t gpu, uint64_t address, size_t size)
{
	struct arena *a = &arenas[gpu];
	struct extent e = { address - a->base, round_up(size, ALIGN) };
	uint64_t page = round_up(e.at, 4096), end = (e.at + e.size) / 4096 * 4096;
	size_t i = 0, hi = a->n;

	if (end > page)
		madvise(a->behind + page, end - page, MADV_DONTNEED);
	while (i < hi) {
		size_t mid = (i + hi) / 2;

		if (a->unused[mid].at < e.at)
			i = mid + 1;
		else
			hi = mid;
	}
	if (i < a->n && e.at + e.size == a->unused[i].at) {
		a->unused[i].at = e.at;
		a->unused[i].size += e.size;
		if (i > 0 && a->unused[i - 1].at + a->unused[i - 1].size == e.at) {
			a->unused[i - 1].size += a->unused[i].size;
			a->n--;
			memmove(&a->unused[i], &a->unused[i + 1], (a->n - i) * sizeof(e));
		}
	} else if (i > 0 && a->unused[i - 1].at + a->unused[i - 1].size == e.at) {
		a->unused[i - 1].size += e.size;
	} else {
		insert_extent(a, i, e); /* no memory: these addresses are never used again */
	}
}

void *arena_host(uint64_t address)
{
	for (int g = 0; g < SIM_MAX_GPUS; g++) {
		const struct arena *a = &arenas[g];

		if (address >= a->base && address - a->base < a->size)
			return a->behind + (address - a->base);
	}
	return NULL;
}
