/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that submit work: the gate, the call, what is in flight, in this order. */
#include "driver.h"

static void begin(struct vgpu_call *call, CUstream handle)
{
	call->handle = handle;
	call->stream = NULL;
	call->waits = false;
	/* A captured call is not work; what the graph does later is. */
	call->gated = !(atomic_load_explicit(&vgpu_captures, memory_order_acquire) > 0 && vgpu_is_captured(handle));
	if (call->gated)
		vgpu_gate_enter();
	vgpu_thread.nested++;
}

/* Counts one piece of work that the driver took. Without success it may still
 * have taken a part of it, but an unknown handle is then never looked at. */
static void count(CUstream handle, CUresult r)
{
	struct vgpu_stream *s = r == CUDA_SUCCESS ? vgpu_stream_get(handle) : vgpu_stream_find(handle);

	if (!s)
		return;
	/* Release: the driver took the work before it counts. A thread that read
	 * the number before a synchronising call proves only what it read. */
	atomic_fetch_add_explicit(&s->submitted, 1, memory_order_release);
	if (handle == CU_STREAM_PER_THREAD ||
	    (handle == CU_STREAM_LEGACY && atomic_load_explicit(&vgpu_captures, memory_order_acquire) > 0))
		vgpu_probe(s); /* nobody else could ask for it */
}

void vgpu_work_begin(struct vgpu_call *call, CUstream stream, enum vgpu_default d)
{
	begin(call, vgpu_stream_handle(stream, d));
}

void vgpu_work_waits(struct vgpu_call *call)
{
	call->waits = true;
	call->stream = vgpu_stream_find(call->handle);
	if (call->stream)
		call->number = vgpu_stream_submitted(call->stream);
}

void vgpu_work_end(struct vgpu_call *call, CUresult r)
{
	vgpu_thread.nested--;
	if (!call->gated)
		return;
	if (call->waits && r == CUDA_SUCCESS) {
		/* It has happened, and with it what stood before it. */
		if (call->stream)
			vgpu_stream_done(call->stream, call->number);
	} else {
		vgpu_thread.nested++;
		count(call->handle, r);
		vgpu_thread.nested--;
	}
	vgpu_gate_leave();
	if (call->waits)
		vgpu_notify();
}

void vgpu_launch_ex_begin(struct vgpu_call *call, const CUlaunchConfig *config, enum vgpu_default d)
{
	if (config && config->attrs) {
		for (unsigned int i = 0; i < config->numAttrs; i++) {
			/* The launch itself records these: no hook will see it. */
			if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_EVENT)
				vgpu_event_share(config->attrs[i].value.programmaticEvent.event);
			else if (config->attrs[i].id == CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT)
				vgpu_event_share(config->attrs[i].value.launchCompletionEvent.event);
		}
	}
	vgpu_work_begin(call, config ? config->hStream : NULL, d);
}

void vgpu_launch_multi_begin(struct vgpu_call *call)
{
	/* Such a launch can not be captured. */
	call->gated = true;
	vgpu_gate_enter();
	vgpu_thread.nested++;
}

void vgpu_launch_multi_end(struct vgpu_call *call, CUresult r, CUDA_LAUNCH_PARAMS *list, unsigned int n)
{
	(void)call;
	for (unsigned int i = 0; list && i < n; i++)
		count(vgpu_stream_handle(list[i].hStream, VGPU_LEGACY), r);
	vgpu_thread.nested--;
	vgpu_gate_leave();
}
