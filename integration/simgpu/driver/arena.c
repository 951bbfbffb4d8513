/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device addresses. Of each GPU a process sees one range of addresses that it
 * may not touch itself (PROT_NONE: a program that reads device memory faults, as
 * on hardware); what is in there lies at a fixed distance in a second range. That
 * is a memory file, so that other processes can map what is shared with them.
 *
 * A second, small one lies below 4 GiB: for the calls of the age when a device
 * pointer had 32 bits.
 */
#define _GNU_SOURCE
#include <sys/mman.h>
#include <unistd.h>

#include "extents.h"
#include "memory.h"
#include "shared.h"

#define ALIGN 512ull
#define BIG (2ull << 20)
#define LOW_FROM (256ull << 20)
#define LOW_END (4ull << 30)
#define LOW_SIZE (512ull << 20)

static struct arena {
	uint64_t base;
	_Atomic uint64_t size; /* written last: read without the mutex */
	unsigned char *behind;
	int fd;
	struct extents unused; /* offsets */
} arenas[SIM_MAX_GPUS], lows[SIM_MAX_GPUS];

static uint64_t round_up(uint64_t n, uint64_t to)
{
	return (n + to - 1) / to * to;
}

static char *map_seen(uint64_t n, bool low)
{
	const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

	if (!low)
		return mmap(NULL, n, PROT_NONE, flags, -1, 0);
	/* The address is only a wish: a kernel gives another one if that is taken. */
	for (uint64_t at = LOW_FROM; at + n < LOW_END; at += LOW_FROM) {
		char *p = mmap((void *)(uintptr_t)at, n, PROT_NONE, flags, -1, 0);

		if (p == MAP_FAILED || (uint64_t)(uintptr_t)p + n < LOW_END)
			return p;
		munmap(p, n);
	}
	return MAP_FAILED;
}

static bool arena_map(struct arena *a, uint32_t gpu, uint64_t size, bool low)
{
	uint64_t n = round_up(size, BIG) + BIG;
	int fd = shared_new(&(struct shared_head){ .kind = SHARED_ARENA, .gpu = gpu, .proc = sim.mc.id, .size = n });

	if (fd < 0)
		return false;
	char *seen = map_seen(n, low);
	char *behind = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
	uint64_t base = round_up((uint64_t)(uintptr_t)seen, BIG);

	if (seen == MAP_FAILED || behind == MAP_FAILED || !extents_give(&a->unused, 0, n - BIG)) {
		if (seen != MAP_FAILED)
			munmap(seen, n);
		if (behind != MAP_FAILED)
			munmap(behind, n);
		close(fd);
		return false;
	}
	madvise(behind, n, MADV_DONTDUMP);
	madvise(behind, n, MADV_DONTFORK);
	a->base = base;
	a->behind = (unsigned char *)behind;
	a->fd = fd;
	/* release: who sees the size sees the rest */
	atomic_store_explicit(&a->size, n - BIG, memory_order_release);
	return true;
}

static bool alloc(struct arena *a, uint32_t gpu, size_t size, uint64_t room, bool low, uint64_t *address)
{
	if (!a->size && !arena_map(a, gpu, room, low))
		return false;
	if (!extents_take(&a->unused, round_up(size, ALIGN), ALIGN, address))
		return false;
	*address += a->base;
	return true;
}

bool arena_alloc_locked(uint32_t gpu, size_t size, uint64_t *address)
{
	/* Twice the memory: room enough although first fit leaves holes. */
	return alloc(&arenas[gpu], gpu, size, sim.mc.m->memory * 2, false, address);
}

bool arena_alloc_low_locked(uint32_t gpu, size_t size, uint64_t *address)
{
	return alloc(&lows[gpu], gpu, size, LOW_SIZE, true, address);
}

static struct arena *arena_of(uint64_t address)
{
	for (int g = 0; g < SIM_MAX_GPUS * 2; g++) {
		struct arena *a = g < SIM_MAX_GPUS ? &arenas[g] : &lows[g - SIM_MAX_GPUS];
		/* acquire: pairs with arena_map */
		uint64_t size = atomic_load_explicit(&a->size, memory_order_acquire);

		if (size && address >= a->base && address - a->base < size)
			return a;
	}
	return NULL;
}

void arena_free_locked(uint32_t gpu, uint64_t address, size_t size)
{
	struct arena *a = address < LOW_END ? &lows[gpu] : &arenas[gpu];
	uint64_t at = address - a->base, n = round_up(size, ALIGN);
	uint64_t page = round_up(at, 4096), end = (at + n) / 4096 * 4096;

	if (end > page)
		madvise(a->behind + page, end - page, MADV_REMOVE);
	extents_give(&a->unused, at, n);
}

int arena_file_locked(uint64_t address, uint64_t *offset)
{
	const struct arena *a = arena_of(address);

	*offset = address - a->base;
	return a->fd;
}

void *arena_host(uint64_t address)
{
	const struct arena *a = arena_of(address);

	return a ? a->behind + (address - a->base) : window_host(address);
}
