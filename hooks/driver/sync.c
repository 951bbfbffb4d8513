/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of the application that prove work complete for free. What they prove
 * is what had been submitted *before* they were called: another thread may
 * submit meanwhile.
 */
#include <stdlib.h>

#include "driver.h"

void vgpu_sync_stream_begin(struct vgpu_call *call, CUstream stream, enum vgpu_default d)
{
	call->stream = vgpu_stream_find_quick(vgpu_stream_handle(stream, d));
	if (call->stream)
		call->number = vgpu_stream_submitted(call->stream);
	vgpu_thread.nested++;
}

void vgpu_sync_end(struct vgpu_call *call, CUresult r)
{
	vgpu_thread.nested--;
	if (r != CUDA_SUCCESS || !call->stream || !vgpu_stream_busy(call->stream))
		return;
	vgpu_stream_done(call->stream, call->number);
	vgpu_notify();
}

void vgpu_sync_event_begin(struct vgpu_call *call, CUevent event)
{
	struct vgpu_mark mark;

	call->stream = NULL;
	if (vgpu_event_read(event, &mark, &call->version)) {
		call->stream = mark.stream;
		call->number = mark.number;
	}
	vgpu_thread.nested++;
}

void vgpu_sync_event_end(struct vgpu_call *call, CUresult r, CUevent event)
{
	struct vgpu_mark mark;
	uint64_t version;

	vgpu_thread.nested--;
	if (r != CUDA_SUCCESS || !call->stream || !vgpu_stream_busy(call->stream))
		return;
	/* Recorded anew meanwhile: the answer may be about the new record. */
	if (!vgpu_event_read(event, &mark, &version) || version != call->version)
		return;
	vgpu_stream_done(call->stream, call->number);
	vgpu_notify();
}

static bool mark_one(struct vgpu_stream *s, void *arg)
{
	struct vgpu_call *call = arg;
	struct vgpu_mark *more;
	/* Before the look at the context: a record is put to another use only
	 * when it is complete, so that a number of its former use proves nothing. */
	uint64_t number = vgpu_stream_submitted(s);

	if (atomic_load_explicit(&s->context, memory_order_relaxed) != call->context || !vgpu_stream_busy(s))
		return true;
	if (call->n == call->room) {
		unsigned room = call->room ? 2 * call->room : 16;

		more = realloc(call->marks, room * sizeof(*more));
		if (!more)
			return false; /* the rest is found by the library's thread */
		call->marks = more;
		call->room = room;
	}
	call->marks[call->n++] = (struct vgpu_mark){ s, number };
	return true;
}

void vgpu_sync_context_begin(struct vgpu_call *call, CUcontext context)
{
	vgpu_thread.nested++;
	call->n = call->room = 0;
	call->marks = NULL;
	call->context = context;
	if (!context && VGPU_REAL(cuCtxGetCurrent)(&call->context) != CUDA_SUCCESS)
		call->context = NULL;
	if (call->context)
		vgpu_streams_each(mark_one, call);
}

void vgpu_sync_context_end(struct vgpu_call *call, CUresult r)
{
	vgpu_thread.nested--;
	if (r == CUDA_SUCCESS && call->n > 0) {
		for (unsigned i = 0; i < call->n; i++)
			vgpu_stream_done(call->marks[i].stream, call->marks[i].number);
		vgpu_notify();
	}
	free(call->marks);
}
