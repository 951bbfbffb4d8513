/* SPDX-License-Identifier: Apache-2.0 */
/* A hash table of nodes that live in something else, for the layers above the
 * gate: by the address or handle that an API gave out. */
#ifndef VGPU_HASH_H
#define VGPU_HASH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vgpu_node {
	uint64_t key;
	unsigned kind;
	struct vgpu_node *next;
};

#define VGPU_HASH_FIRST 64
struct vgpu_hash {
	struct vgpu_node *first[VGPU_HASH_FIRST]; /* so that nothing can fail */
	struct vgpu_node **bucket; /* NULL: first */
	size_t size, count;
};

void vgpu_hash_add(struct vgpu_hash *h, struct vgpu_node *n);
struct vgpu_node *vgpu_hash_find(struct vgpu_hash *h, unsigned kind, uint64_t key);
struct vgpu_node *vgpu_hash_find_if(struct vgpu_hash *h, bool (*match)(struct vgpu_node *n, const void *arg), const void *arg);
struct vgpu_node *vgpu_hash_take(struct vgpu_hash *h, unsigned kind, uint64_t key);
/* Takes out all that match; a list of them. */
struct vgpu_node *vgpu_hash_take_if(struct vgpu_hash *h, bool (*match)(struct vgpu_node *n, const void *arg), const void *arg);

#endif
