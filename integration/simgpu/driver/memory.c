/* SPDX-License-Identifier: Apache-2.0 */
/* What is allocated: a table in the order of address. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "graph.h"
#include "memory.h"

#define CHARGE_UNIT 512ull

static struct allocation *table;
static size_t n_table, room;

/* More than any GPU has stays so. */
static uint64_t charge_of(size_t size)
{
	return size > UINT64_MAX - CHARGE_UNIT ? UINT64_MAX : (size + CHARGE_UNIT - 1) / CHARGE_UNIT * CHARGE_UNIT;
}

static bool charge(uint32_t gpu, enum memory_kind kind, size_t size)
{
	switch (kind) {
	case MEMORY_DEVICE:
		return charge_locked(gpu, charge_of(size));
	case MEMORY_MANAGED:
		return charge_managed_locked(gpu, charge_of(size));
	default:
		return host_has(size);
	}
}

static void uncharge(uint32_t gpu, enum memory_kind kind, size_t size)
{
	if (kind == MEMORY_DEVICE)
		machine_uncharge(&sim.mc, gpu, charge_of(size));
	else if (kind == MEMORY_MANAGED)
		uncharge_managed(gpu, charge_of(size));
}

/* The first entry whose base is above the address. */
static size_t above(uint64_t address)
{
	size_t lo = 0, hi = n_table;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (table[mid].base <= address)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

struct allocation *memory_find_locked(uint64_t address)
{
	size_t i = above(address);

	if (i == 0 || address - table[i - 1].base >= table[i - 1].size)
		return NULL;
	return &table[i - 1];
}

bool memory_place_locked(const struct allocation *a)
{
	size_t i = above(a->base);

	if (n_table == room) {
		size_t more = room ? room * 2 : 64;
		struct allocation *p = realloc(table, more * sizeof(*p));

		if (!p)
			return false;
		table = p;
		room = more;
	}
	memmove(&table[i + 1], &table[i], (n_table - i) * sizeof(*table));
	table[i] = *a;
	n_table++;
	return true;
}

void memory_remove_locked(struct allocation *a)
{
	size_t i = (size_t)(a - table);

	n_table--;
	memmove(&table[i], &table[i + 1], (n_table - i) * sizeof(*table));
}

struct allocation *memory_next_locked(uint64_t address)
{
	size_t i = address ? above(address - 1) : 0;

	return i < n_table ? &table[i] : NULL;
}

bool memory_any_locked(uint64_t from, uint64_t size)
{
	size_t i = above(from + size - 1);

	return i > 0 && table[i - 1].base + table[i - 1].size > from;
}

/* Gives the memory back; the entry is out of the table. */
static void give_back(const struct allocation *a)
{
	if (a->graph) {
		graph_memory_gone_locked(a->graph);
		return;
	}
	switch (a->kind) {
	case MEMORY_DEVICE:
		arena_free_locked(a->gpu, a->base, a->size);
		break;
	case MEMORY_MANAGED:
		managed_forget_locked(a->base, a->size);
		munmap((void *)(uintptr_t)a->base, a->size);
		break;
	case MEMORY_HOST:
		munmap((void *)(uintptr_t)a->base, a->size);
		break;
	case MEMORY_IMPORTED:
		import_end_locked(a);
		break;
	case MEMORY_REGISTERED:
	case MEMORY_POOL:
	case MEMORY_MAPPED:
		break;
	}
	uncharge(a->gpu, a->kind, a->size);
}

static bool take(struct allocation *a)
{
	if (a->kind == MEMORY_DEVICE)
		return a->flags & MEMORY_LOW ? arena_alloc_low_locked(a->gpu, a->size, &a->base) :
					       arena_alloc_locked(a->gpu, a->size, &a->base);
	void *p = mmap(NULL, a->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	a->base = (uint64_t)(uintptr_t)p;
	return p != MAP_FAILED;
}

CUresult memory_alloc_locked(struct context *ctx, size_t size, enum memory_kind kind, unsigned flags, uint64_t *address)
{
	struct allocation a = {
		.size = size, .kind = kind, .ctx = ctx, .gpu = ctx->gpu, .device = ctx->device, .flags = flags, .id = ++sim.next_id,
	};

	if (size == 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (!charge(ctx->gpu, kind, size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!take(&a)) {
		uncharge(ctx->gpu, kind, size);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (!memory_place_locked(&a)) {
		give_back(&a);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	*address = a.base;
	return CUDA_SUCCESS;
}

static void remove_at(size_t i)
{
	struct allocation a = table[i];

	if (a.kind == MEMORY_POOL) {
		pool_free_locked(&table[i], NULL, 0);
		return;
	}
	memory_remove_locked(&table[i]);
	give_back(&a);
}

CUresult memory_free_locked(uint64_t address)
{
	struct allocation *a = memory_find_locked(address);

	if (!a || a->base != address || a->kind == MEMORY_REGISTERED || a->kind == MEMORY_MAPPED)
		return CUDA_ERROR_INVALID_VALUE;
	remove_at((size_t)(a - table));
	return CUDA_SUCCESS;
}

void memory_free_context_locked(struct context *ctx)
{
	for (size_t i = n_table; i-- > 0;)
		if (table[i].ctx == ctx)
			remove_at(i);
	pool_trim_all_locked(ctx->gpu);
}

CUresult memory_register_locked(struct context *ctx, void *p, size_t size, unsigned flags)
{
	uint64_t from = (uint64_t)(uintptr_t)p;
	struct allocation a = {
		.base = from, .size = size, .kind = MEMORY_REGISTERED, .ctx = ctx, .gpu = ctx->gpu, .device = ctx->device, .flags = flags,
		.id = ++sim.next_id,
	};

	if (!p || size == 0 || from + size < from)
		return CUDA_ERROR_INVALID_VALUE;
	if (memory_any_locked(from, size))
		return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
	return memory_place_locked(&a) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult memory_unregister_locked(void *p)
{
	struct allocation *a = memory_find_locked((uint64_t)(uintptr_t)p);

	if (!a || a->kind != MEMORY_REGISTERED || a->base != (uint64_t)(uintptr_t)p)
		return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
	remove_at((size_t)(a - table));
	return CUDA_SUCCESS;
}

bool memory_is_device(uint64_t address)
{
	return arena_host(address) != NULL;
}

bool memory_is_pageable_locked(uint64_t address)
{
	return !memory_is_device(address) && !memory_find_locked(address);
}

static void *reach(uint64_t address, size_t n, bool write)
{
	const struct allocation *a = memory_find_locked(address);

	if (a && a->kind == MEMORY_MAPPED)
		return map_at_locked(address, n, write);
	/* A pool's memory stays where it is: what was queued before a free still reaches it. */
	if (!a || n > a->size - (address - a->base))
		return self.engine ? pool_at_locked(address, n) : NULL;
	if (write && a->kind == MEMORY_REGISTERED && a->flags & CU_MEMHOSTREGISTER_READ_ONLY)
		return NULL;
	void *there = arena_host(address);
	return there ? there : (void *)(uintptr_t)address;
}

void *memory_at_locked(uint64_t address, size_t n)
{
	return reach(address, n, false);
}

void *memory_to_locked(uint64_t address, size_t n)
{
	return reach(address, n, true);
}

static void *reach_unlocked(uint64_t address, size_t n, bool host_too, bool write)
{
	void *p;

	lock();
	p = reach(address, n, write);
	if (!p && host_too && memory_is_pageable_locked(address))
		p = (void *)(uintptr_t)address;
	unlock();
	return p;
}

void *memory_at(uint64_t address, size_t n, bool host_too)
{
	return reach_unlocked(address, n, host_too, false);
}

void *memory_to(uint64_t address, size_t n, bool host_too)
{
	return reach_unlocked(address, n, host_too, true);
}
