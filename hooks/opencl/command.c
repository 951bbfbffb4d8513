/* SPDX-License-Identifier: Apache-2.0 */
/* What stands around each call that enqueues: the gate, the call, what is in flight,
 * in this order. A call that blocks enqueues first and waits outside of the gate: what
 * it waits for may need a thread that stands there. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "opencl.h"

/* A callback found the gate closed: the command gets one thing more to wait for. */
static bool make_late(struct vgpu_command *c)
{
	cl_event event;

	c->list = malloc((c->n + 1) * sizeof(cl_event));
	if (!c->list)
		return false;
	event = vgpu_next.clCreateUserEvent(c->queue->context, NULL);
	if (!event)
		return false;
	if (!vgpu_held_user(event)) {
		vgpu_next.clReleaseEvent(event);
		return false;
	}
	if (c->n)
		memcpy(c->list, c->wait, c->n * sizeof(cl_event));
	c->list[c->n] = event;
	pthread_mutex_lock(&vgpu_lock);
	c->late = vgpu_held_find(event);
	pthread_mutex_unlock(&vgpu_lock);
	vgpu_next.clReleaseEvent(event); /* the record has a reference */
	c->wait = c->list;
	c->n++;
	return true;
}

static void clean_up(struct vgpu_command *c)
{
	if (c->gated)
		vgpu_gate_leave();
	free(c->list);
	free(c->flight);
	vgpu_queue_unuse(c->queue);
}

cl_int vgpu_command_begin(struct vgpu_command *c, enum vgpu_order order, cl_command_queue queue, cl_uint n, const cl_event *wait,
			  cl_event *event, cl_bool blocking)
{
	bool ok = true;

	*c = (struct vgpu_command){ .order = order, .n = n, .wait = wait, .event = event, .blocking = blocking, .wants = event };
	if (!vgpu_managed())
		return CL_SUCCESS;
	if ((n == 0) != (wait == NULL))
		return CL_SUCCESS; /* the implementation refuses it */
	c->queue = vgpu_queue_use(queue);
	if (!c->queue)
		return CL_SUCCESS;
	if (order == VGPU_WORK) {
		c->flight = calloc(1, sizeof(*c->flight));
		if (!c->flight) {
			clean_up(c);
			return CL_OUT_OF_HOST_MEMORY;
		}
		if (!vgpu_cl_thread.callback)
			vgpu_queue_wait(c->queue);
		vgpu_cl_thread.passed = false;
		vgpu_gate_enter();
		c->gated = true;
		if (vgpu_cl_thread.passed)
			ok = make_late(c);
	}
	if (!ok) {
		clean_up(c);
		return CL_OUT_OF_RESOURCES;
	}
	if (!c->event && order == VGPU_WORK)
		c->event = &c->own;
	vgpu_cl_thread.nested++;
	return CL_SUCCESS;
}

/* Enters what was enqueued as held or in flight. False: no memory to say that it is
 * held; then it counts as in flight. */
static void enter(struct vgpu_command *c)
{
	cl_event event = c->event ? *c->event : NULL;
	struct vgpu_flight *trash = NULL;
	struct vgpu_held *h = NULL;
	unsigned room, have = 0;

	if (event)
		vgpu_next.clRetainEvent(event);
	pthread_mutex_lock(&vgpu_lock);
	while ((room = vgpu_held_room(c->n)) > have) {
		pthread_mutex_unlock(&vgpu_lock);
		free(h);
		have = room + 8;
		h = calloc(1, sizeof(*h) + have * sizeof(h->on[0]));
		pthread_mutex_lock(&vgpu_lock);
		if (!h)
			break;
	}
	if (h && room)
		h->n = vgpu_held_on(h->on, c->queue, c->order, c->n, c->wait);
	if (h && h->n > 0) {
		h->queue = c->queue;
		h->queue->uses++;
		h->flight = c->flight;
		vgpu_held_add(h, c->order, event);
		h = NULL;
		event = NULL;
		c->flight = NULL;
	} else if (c->order == VGPU_WORK) {
		vgpu_queue_add(c->queue, c->flight, event, &trash);
		event = NULL;
		c->flight = NULL;
	}
	pthread_mutex_unlock(&vgpu_lock);
	free(h);
	if (event)
		vgpu_next.clReleaseEvent(event);
	vgpu_flights_free(trash);
}

cl_int vgpu_command_end(struct vgpu_command *c, cl_int r)
{
	cl_event event;

	if (!c->queue)
		return r;
	event = r == CL_SUCCESS && c->event ? *c->event : NULL;
	if (r == CL_SUCCESS)
		enter(c);
	if (c->late && (r != CL_SUCCESS || !vgpu_late_set(c->late, CL_COMPLETE))) {
		/* It failed, or without memory: what was enqueued ends with an error. */
		vgpu_next.clSetUserEventStatus(c->late->event, CL_OUT_OF_RESOURCES);
		vgpu_held_resolve(c->late);
	}
	if (c->gated)
		vgpu_gate_leave();
	c->gated = false;
	if (r == CL_SUCCESS && c->blocking)
		r = vgpu_next.clWaitForEvents(1, &event);
	if (event && !c->wants)
		vgpu_next.clReleaseEvent(event);
	else if (event && r != CL_SUCCESS) {
		vgpu_next.clReleaseEvent(event); /* the call fails: the program gets no event */
		*c->event = NULL;
	}
	vgpu_cl_thread.nested--;
	if (c->blocking)
		vgpu_notify();
	clean_up(c);
	return r;
}
