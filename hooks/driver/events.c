/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the application's events stand behind: an event that is complete proves
 * its stream complete up to the number that was submitted when it was recorded.
 * An event that may be recorded where no hook sees it (by a graph, by another
 * process, by a launch attribute) is shared: it proves nothing, for ever.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>

#include "driver.h"

#define BUCKETS 512

struct entry {
	CUevent event;
	struct vgpu_stream *stream; /* NULL: proves nothing */
	uint64_t number;
	uint64_t version;          /* raised before and after each record */
	unsigned recording;        /* records in progress */
	bool shared;
	struct entry *next;
};

/* On lines of its own: what is written at each record must not lie beside what
 * each launch reads. */
static struct {
	_Alignas(64) pthread_mutex_t lock; /* guards everything; no driver call under it */
	struct entry *bucket[BUCKETS];
	uint64_t versions;
} events = { .lock = PTHREAD_MUTEX_INITIALIZER };

static struct entry **place(CUevent event)
{
	struct entry **at = &events.bucket[((uintptr_t)event * 0x9e3779b97f4a7c15u) >> 55];

	while (*at && (*at)->event != event)
		at = &(*at)->next;
	return at;
}

static struct entry *get_locked(CUevent event)
{
	struct entry **at = place(event), *e = *at;

	if (!e) {
		e = calloc(1, sizeof(*e));
		if (!e)
			return NULL;
		e->event = event;
		*at = e;
	}
	/* One counter for all: an entry that was freed and made again differs. */
	e->version = ++events.versions;
	return e;
}

/* A record begins: the event proves nothing until it is over. */
static uint64_t begin(CUevent event)
{
	struct entry *e;
	uint64_t version = 0;

	pthread_mutex_lock(&events.lock);
	e = get_locked(event);
	if (e) {
		e->stream = NULL;
		e->recording++;
		version = e->version;
	}
	pthread_mutex_unlock(&events.lock);
	return version;
}

/* A record is over. Of two that overlap nobody knows which came last, so that
 * the event proves nothing until it is recorded again. */
static void end(CUevent event, uint64_t version, struct vgpu_stream *stream, uint64_t number)
{
	struct entry *e;
	bool alone;

	pthread_mutex_lock(&events.lock);
	e = *place(event);
	if (e) {
		if (e->recording > 0)
			e->recording--;
		alone = e->recording == 0 && e->version == version;
		e->version = ++events.versions;
		e->stream = alone && !e->shared ? stream : NULL;
		e->number = number;
	}
	pthread_mutex_unlock(&events.lock);
}

bool vgpu_event_read(CUevent event, struct vgpu_mark *mark, uint64_t *version)
{
	struct entry *e;
	bool known;

	pthread_mutex_lock(&events.lock);
	e = *place(event);
	known = e && e->stream;
	if (known) {
		*mark = (struct vgpu_mark){ e->stream, e->number };
		*version = e->version;
	}
	pthread_mutex_unlock(&events.lock);
	return known;
}

void vgpu_event_share(CUevent event)
{
	struct entry *e;

	pthread_mutex_lock(&events.lock);
	e = get_locked(event);
	if (e) {
		e->shared = true;
		e->stream = NULL;
	}
	pthread_mutex_unlock(&events.lock);
}

void vgpu_event_record_begin(struct vgpu_call *call, CUevent event, CUstream stream, enum vgpu_default d)
{
	CUstream handle = vgpu_stream_handle(stream, d);

	call->stream = NULL;
	call->version = 0;
	if (atomic_load_explicit(&vgpu_captures, memory_order_acquire) > 0 && vgpu_is_captured(handle)) {
		/* Recorded into a graph: its launches record the event later. */
		vgpu_event_share(event);
	} else {
		call->version = begin(event);
		call->stream = vgpu_stream_find_quick(handle);
		if (call->stream)
			call->number = vgpu_stream_submitted(call->stream);
	}
	vgpu_thread.nested++;
}

void vgpu_event_record_end(struct vgpu_call *call, CUresult r, CUevent event)
{
	vgpu_thread.nested--;
	if (call->version)
		end(event, call->version, r == CUDA_SUCCESS ? call->stream : NULL, call->number);
}

void vgpu_event_elsewhere_begin(struct vgpu_call *call, CUevent event)
{
	call->stream = NULL;
	call->number = 0;
	call->version = begin(event);
	vgpu_thread.nested++;
}

void vgpu_event_other_end(struct vgpu_call *call)
{
	(void)call;
	vgpu_thread.nested--;
}

void vgpu_event_destroy_begin(struct vgpu_call *call, CUevent event)
{
	struct entry **at, *e;

	(void)call;
	pthread_mutex_lock(&events.lock);
	at = place(event);
	e = *at;
	if (e)
		*at = e->next;
	pthread_mutex_unlock(&events.lock);
	free(e);
	vgpu_thread.nested++;
}

void vgpu_event_shared_begin(struct vgpu_call *call, CUevent event)
{
	(void)call;
	vgpu_event_share(event);
	vgpu_thread.nested++;
}

void vgpu_event_opened_end(struct vgpu_call *call, CUresult r, CUevent *event)
{
	(void)call;
	vgpu_thread.nested--;
	if (r == CUDA_SUCCESS && event)
		vgpu_event_share(*event);
}

void vgpu_event_in_node_begin(struct vgpu_call *call, const CUgraphNodeParams *params)
{
	(void)call;
	if (params && params->type == CU_GRAPH_NODE_TYPE_EVENT_RECORD)
		vgpu_event_share(params->eventRecord.event);
	vgpu_thread.nested++;
}
