/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "extents.h"

static bool insert(struct extents *x, size_t i, struct extent e)
{
	if (x->n == x->room) {
		size_t room = x->room ? x->room * 2 : 64;
		struct extent *p = realloc(x->e, room * sizeof(*p));

		if (!p)
			return false;
		x->e = p;
		x->room = room;
	}
	memmove(&x->e[i + 1], &x->e[i], (x->n - i) * sizeof(e));
	x->e[i] = e;
	x->n++;
	return true;
}

static void drop(struct extents *x, size_t i)
{
	x->n--;
	memmove(&x->e[i], &x->e[i + 1], (x->n - i) * sizeof(*x->e));
}

/* The first one that begins at or behind the address. */
static size_t find(const struct extents *x, uint64_t at)
{
	size_t lo = 0, hi = x->n;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (x->e[mid].at < at)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

/* Cuts a range out of the extent that has it. */
static bool cut(struct extents *x, size_t i, uint64_t at, uint64_t size)
{
	struct extent *e = &x->e[i];
	uint64_t before = at - e->at, behind = e->size - before - size;

	if (before && behind && !insert(x, i + 1, (struct extent){ at + size, behind }))
		return false;
	e = &x->e[i];
	if (before)
		e->size = before;
	else if (behind)
		*e = (struct extent){ at + size, behind };
	else
		drop(x, i);
	return true;
}

bool extents_take(struct extents *x, uint64_t size, uint64_t align, uint64_t *at)
{
	for (size_t i = 0; i < x->n; i++) {
		uint64_t from = (x->e[i].at + align - 1) & ~(align - 1), skip = from - x->e[i].at;

		if (x->e[i].size < skip || x->e[i].size - skip < size)
			continue;
		*at = from;
		return cut(x, i, from, size);
	}
	return false;
}

bool extents_take_at(struct extents *x, uint64_t at, uint64_t size)
{
	size_t i = find(x, at);

	if (i == x->n || x->e[i].at > at)
		i--; /* the one before; wraps if there is none */
	if (i >= x->n || at < x->e[i].at || x->e[i].size < at - x->e[i].at || x->e[i].size - (at - x->e[i].at) < size)
		return false;
	return cut(x, i, at, size);
}

bool extents_give(struct extents *x, uint64_t at, uint64_t size)
{
	size_t i = find(x, at);
	bool joins_before = i > 0 && x->e[i - 1].at + x->e[i - 1].size == at;
	bool joins_behind = i < x->n && at + size == x->e[i].at;

	if (joins_before) {
		x->e[i - 1].size += size;
		if (joins_behind) {
			x->e[i - 1].size += x->e[i].size;
			drop(x, i);
		}
	} else if (joins_behind) {
		x->e[i].at = at;
		x->e[i].size += size;
	} else {
		return insert(x, i, (struct extent){ at, size });
	}
	return true;
}
