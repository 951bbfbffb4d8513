/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device addresses without memory: one large range for what a program maps
 * itself, and for memory of other processes. As in the arena, the program may not
 * touch the addresses and what is there lies at a fixed distance.
 */
#define _GNU_SOURCE
#include <sys/mman.h>

#include "extents.h"
#include "memory.h"

#define LARGEST (4ull << 40)
#define SMALLEST (64ull << 30)

static struct {
	uint64_t base;
	_Atomic uint64_t size; /* written last: read without the mutex */
	unsigned char *behind;
	struct extents unused; /* addresses */
} window;

static const int anonymous = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

/* Address space may be scarce (sanitizers, limits): as much as there is. */
static bool window_open(void)
{
	for (uint64_t n = LARGEST; n >= SMALLEST; n /= 2) {
		char *seen = mmap(NULL, n, PROT_NONE, anonymous, -1, 0);
		char *behind = seen == MAP_FAILED ? MAP_FAILED : mmap(NULL, n, PROT_NONE, anonymous, -1, 0);
		uint64_t base = ((uint64_t)(uintptr_t)seen + VMM_PAGE - 1) / VMM_PAGE * VMM_PAGE;

		if (behind != MAP_FAILED && extents_give(&window.unused, base, n - VMM_PAGE)) {
			madvise(behind, n, MADV_DONTFORK);
			window.base = base;
			window.behind = (unsigned char *)behind;
			/* release: who sees the size sees the rest */
			atomic_store_explicit(&window.size, n - VMM_PAGE, memory_order_release);
			return true;
		}
		if (seen != MAP_FAILED)
			munmap(seen, n);
		if (behind != MAP_FAILED)
			munmap(behind, n);
	}
	return false;
}

bool window_take_locked(uint64_t size, uint64_t align, uint64_t wish, uint64_t *at)
{
	if (!window.size && !window_open())
		return false;
	if (wish && extents_take_at(&window.unused, wish, size)) {
		*at = wish;
		return true;
	}
	return extents_take(&window.unused, size, align, at);
}

void window_give_locked(uint64_t at, uint64_t size)
{
	extents_give(&window.unused, at, size);
}

static void *place(uint64_t at)
{
	return window.behind + (at - window.base);
}

bool window_map_locked(uint64_t at, uint64_t size, int fd, uint64_t offset)
{
	void *p = mmap(place(at), size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED | MAP_NORESERVE, fd, (off_t)offset);

	if (p == MAP_FAILED)
		return false;
	madvise(p, size, MADV_DONTDUMP);
	madvise(p, size, MADV_DONTFORK);
	return true;
}

/* Work that touches it at this moment must not crash the program: it writes into the void. */
void window_unmap_locked(uint64_t at, uint64_t size)
{
	mmap(place(at), size, PROT_READ | PROT_WRITE, anonymous | MAP_FIXED, -1, 0);
	window_show_locked(at, size, -1, 0, PROT_NONE);
}

bool window_show_locked(uint64_t at, uint64_t size, int fd, uint64_t offset, int prot)
{
	int flags = (prot == PROT_NONE ? anonymous : MAP_SHARED) | MAP_FIXED;

	return mmap((void *)(uintptr_t)at, size, prot, flags, prot == PROT_NONE ? -1 : fd, (off_t)offset) != MAP_FAILED;
}

void *window_host(uint64_t address)
{
	/* acquire: pairs with window_open */
	uint64_t size = atomic_load_explicit(&window.size, memory_order_acquire);

	return size && address >= window.base && address - window.base < size ? place(address) : NULL;
}
