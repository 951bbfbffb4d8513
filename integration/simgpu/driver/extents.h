/* SPDX-License-Identifier: Apache-2.0 */
/* A set of free ranges, in the order of address: first fit, neighbours grow together. */
#ifndef SIMGPU_EXTENTS_H
#define SIMGPU_EXTENTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct extent {
	uint64_t at, size;
};

struct extents {
	struct extent *e;
	size_t n, room;
};

/* The first free range of that size whose begin is a multiple of align (a power of two). */
bool extents_take(struct extents *x, uint64_t size, uint64_t align, uint64_t *at);
/* Exactly this range. False: it is not free as a whole. */
bool extents_take_at(struct extents *x, uint64_t at, uint64_t size);
/* False: no memory, the range is never used again. */
bool extents_give(struct extents *x, uint64_t at, uint64_t size);

#endif
