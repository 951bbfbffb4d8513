/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Commands that can not run yet: they wait for a user event that was not set, or for
 * a command that does. They are not in flight, so a turn ends without them; they
 * become so, in the order in which they were enqueued, when the event is set.
 */
#define _GNU_SOURCE
#include <stdlib.h>

#include "opencl.h"

/* Under vgpu_lock. */
static struct {
	struct vgpu_hash by_event;
	struct vgpu_held *first;   /* commands, as they were enqueued */
	unsigned n;                /* of them, and user events */
} held;

unsigned vgpu_held_room(cl_uint n)
{
	/* On every one that is there, or on the list and what goes before in the queue. */
	return held.n ? (held.n > n + 1 ? held.n : n + 1) : 0;
}

struct vgpu_held *vgpu_held_find(cl_event event)
{
	return held.n ? (struct vgpu_held *)vgpu_hash_find(&held.by_event, 0, (uintptr_t)event) : NULL;
}

unsigned vgpu_held_on(struct vgpu_held **out, struct vgpu_queue *q, enum vgpu_order order, cl_uint n, const cl_event *wait)
{
	unsigned found = 0;
	struct vgpu_held *h;

	for (cl_uint i = 0; i < n && wait; i++)
		if ((h = vgpu_held_find(wait[i])))
			out[found++] = h;
	if (q->held)
		out[found++] = q->held; /* all before it in the queue, or the newest barrier */
	if (!q->in_order && order != VGPU_WORK && n == 0)
		for (h = held.first, found = 0; h; h = h->next)
			if (h->queue == q)
				out[found++] = h;
	return found;
}

void vgpu_held_add(struct vgpu_held *h, enum vgpu_order order, cl_event event)
{
	struct vgpu_held **at = &held.first;

	while (*at)
		at = &(*at)->next;
	*at = h;
	h->event = event;
	h->node.key = event ? (uintptr_t)event : (uintptr_t)h;
	vgpu_hash_add(&held.by_event, &h->node);
	held.n++;
	if (h->queue->in_order || order == VGPU_BARRIER)
		h->queue->held = h;
}

bool vgpu_held_user(cl_event event)
{
	struct vgpu_held *h = calloc(1, sizeof(*h));

	if (!h)
		return false;
	h->user = true;
	h->event = event;
	h->node.key = (uintptr_t)event;
	vgpu_next.clRetainEvent(event);
	pthread_mutex_lock(&vgpu_lock);
	vgpu_hash_add(&held.by_event, &h->node);
	held.n++;
	pthread_mutex_unlock(&vgpu_lock);
	return true;
}

bool vgpu_held_needed(const struct vgpu_held *user)
{
	for (struct vgpu_held *h = held.first; h; h = h->next)
		for (unsigned i = 0; i < h->n; i++)
			if (h->on[i] == user)
				return true;
	return false;
}

static bool still_depends(struct vgpu_held *h)
{
	bool depends = false;

	for (unsigned i = 0; i < h->n; i++) {
		if (h->on[i] && h->on[i]->resolved)
			h->on[i] = NULL;
		depends |= h->on[i] != NULL;
	}
	return depends;
}

void vgpu_held_drop(struct vgpu_held *user)
{
	user->resolved = true;
	vgpu_hash_take(&held.by_event, 0, user->node.key);
	held.n--;
}

void vgpu_held_free(struct vgpu_held *list)
{
	struct vgpu_held *next;

	for (; list; list = next) {
		next = list->next;
		if (list->event)
			vgpu_next.clReleaseEvent(list->event);
		if (list->queue)
			vgpu_queue_unuse(list->queue);
		free(list);
	}
}

void vgpu_held_resolve(struct vgpu_held *user)
{
	struct vgpu_held **at, *h, *done = NULL;
	struct vgpu_flight *trash = NULL;

	pthread_mutex_lock(&vgpu_lock);
	vgpu_held_drop(user);
	/* What a command depends on was enqueued before it: one pass finds all. */
	for (at = &held.first; (h = *at);) {
		if (still_depends(h)) {
			at = &h->next;
			continue;
		}
		*at = h->next;
		vgpu_hash_take(&held.by_event, 0, h->node.key);
		held.n--;
		h->resolved = true;
		if (h->queue->held == h)
			h->queue->held = NULL;
		if (h->flight) {
			vgpu_queue_add(h->queue, h->flight, h->event, &trash);
			h->event = NULL;
		}
		h->next = done;
		done = h;
	}
	pthread_mutex_unlock(&vgpu_lock);
	vgpu_flights_free(trash);
	user->next = done;
	vgpu_held_free(user);
}
