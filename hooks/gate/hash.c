/* SPDX-License-Identifier: Apache-2.0 */
/* A hash table that grows as long as there is memory for it. The caller has the
 * lock. */
#include <stdlib.h>

#include "hash.h"

static size_t size_of(const struct vgpu_hash *h)
{
	return h->bucket ? h->size : VGPU_HASH_FIRST;
}

static struct vgpu_node **buckets(struct vgpu_hash *h)
{
	return h->bucket ? h->bucket : h->first;
}

static struct vgpu_node **place(struct vgpu_hash *h, uint64_t key)
{
	/* Addresses: their low bits are alike. */
	return &buckets(h)[(key * 0x9e3779b97f4a7c15u >> 32) & (size_of(h) - 1)];
}

static void link_node(struct vgpu_hash *h, struct vgpu_node *n)
{
	struct vgpu_node **at = place(h, n->key);

	n->next = *at;
	*at = n;
}

static void grow(struct vgpu_hash *h)
{
	struct vgpu_node **old = buckets(h), *n, *next;
	size_t size = size_of(h);
	struct vgpu_node **more = calloc(size * 4, sizeof(*more));

	if (!more)
		return;
	h->bucket = more;
	h->size = size * 4;
	for (size_t i = 0; i < size; i++) {
		for (n = old[i]; n; n = next) {
			next = n->next;
			link_node(h, n);
		}
	}
	if (old != h->first)
		free(old);
}

void vgpu_hash_add(struct vgpu_hash *h, struct vgpu_node *n)
{
	if (h->count >= size_of(h))
		grow(h);
	link_node(h, n);
	h->count++;
}

struct vgpu_node *vgpu_hash_find(struct vgpu_hash *h, unsigned kind, uint64_t key)
{
	struct vgpu_node *n = *place(h, key);

	while (n && (n->key != key || n->kind != kind))
		n = n->next;
	return n;
}

struct vgpu_node *vgpu_hash_find_if(struct vgpu_hash *h, bool (*match)(struct vgpu_node *n, const void *arg), const void *arg)
{
	for (size_t i = 0; i < size_of(h); i++)
		for (struct vgpu_node *n = buckets(h)[i]; n; n = n->next)
			if (match(n, arg))
				return n;
	return NULL;
}

struct vgpu_node *vgpu_hash_take(struct vgpu_hash *h, unsigned kind, uint64_t key)
{
	struct vgpu_node **at = place(h, key), *n;

	while (*at && ((*at)->key != key || (*at)->kind != kind))
		at = &(*at)->next;
	n = *at;
	if (!n)
		return NULL;
	*at = n->next;
	n->next = NULL;
	h->count--;
	return n;
}

struct vgpu_node *vgpu_hash_take_if(struct vgpu_hash *h, bool (*match)(struct vgpu_node *n, const void *arg), const void *arg)
{
	struct vgpu_node *list = NULL, *n, **at;

	for (size_t i = 0; i < size_of(h); i++) {
		at = &buckets(h)[i];
		while ((n = *at)) {
			if (!match(n, arg)) {
				at = &n->next;
				continue;
			}
			*at = n->next;
			n->next = list;
			list = n;
			h->count--;
		}
	}
	return list;
}
