/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which handles are alive: a hash set of addresses, so that a stale or wild
 * handle gives an error and is never read.
 */
#include <stdlib.h>

#include "sim.h"

static struct {
	void **slot;
	size_t size, used; /* size is a power of two; used counts tombstones too */
} table;

static char tombstone;

static size_t hash(const void *p)
{
	return (size_t)(((uintptr_t)p >> 4) * 0x9e3779b97f4a7c15ull >> 20);
}

static void insert(void *h)
{
	size_t i = hash(h) & (table.size - 1);

	while (table.slot[i] && table.slot[i] != &tombstone)
		i = (i + 1) & (table.size - 1);
	if (!table.slot[i])
		table.used++;
	table.slot[i] = h;
}

static void grow(void)
{
	void **old = table.slot;
	size_t n = table.size, live = 0;

	for (size_t i = 0; i < n; i++)
		live += old[i] && old[i] != &tombstone;
	table.size = 256;
	while (table.size < live * 4)
		table.size *= 2;
	table.slot = calloc(table.size, sizeof(*table.slot));
	if (!table.slot)
		abort();
	table.used = 0;
	for (size_t i = 0; i < n; i++)
		if (old[i] && old[i] != &tombstone)
			insert(old[i]);
	free(old);
}

static void **find(const void *h)
{
	if (!table.size)
		return NULL;
	for (size_t i = hash(h) & (table.size - 1); table.slot[i]; i = (i + 1) & (table.size - 1))
		if (table.slot[i] == h)
			return &table.slot[i];
	return NULL;
}

void handle_add_locked(void *h, enum kind kind)
{
	((struct handle *)h)->kind = kind;
	if (table.used * 2 >= table.size)
		grow();
	insert(h);
}

void handle_remove_locked(void *h)
{
	void **slot = find(h);

	if (slot)
		*slot = &tombstone;
}

void *handle_get_locked(const void *h, enum kind kind)
{
	void **slot;

	if (!h)
		return NULL;
	slot = find(h);
	return slot && ((struct handle *)*slot)->kind == kind ? *slot : NULL;
}
