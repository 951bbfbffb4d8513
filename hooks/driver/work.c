/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that submit work: the gate, the call, what is in flight, in this order. */
#include "driver.h"

void vgpu_work_count(CUstream handle, CUresult r)
{
	/* Without success the driver may still have taken a part of it, or the
	 * context has died; an unknown handle is then never looked at. */
	struct vgpu_stream *s = r == CUDA_SUCCESS ? vgpu_stream_get(handle) : vgpu_stream_find(handle);
	uint64_t n;
	bool look;

	if (!s)
		return;
	if (handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD) {
		look = vgpu_stream_count(s);
	} else {
		/* Against a capture that begins: it counts itself, then looks for
		 * default streams that are busy and not probed (Dekker). Without
		 * context events nobody else could ask for a per-thread stream. */
		n = atomic_fetch_add_explicit(&s->others, 1, memory_order_seq_cst) + 1;
		look = n >= atomic_load_explicit(&s->others_mark, memory_order_relaxed);
		if (atomic_load_explicit(&vgpu_captures, memory_order_seq_cst) > 0 ||
		    (handle == CU_STREAM_PER_THREAD && !vgpu_context_events()))
			vgpu_probe(s, handle);
	}
	if (look && r == CUDA_SUCCESS)
		vgpu_window_mark(s, handle);
}

void vgpu_copy_begin(struct vgpu_call *call, enum vgpu_default d, size_t size)
{
	vgpu_work_begin(call, NULL, d);
	/* Without a byte the driver need not wait for what stands before it. */
	call->waits = call->gated && size > 0;
	if (!call->waits)
		return;
	call->stream = vgpu_stream_find_quick(call->handle);
	if (call->stream)
		call->number = vgpu_stream_submitted(call->stream);
}

void vgpu_copy_end(struct vgpu_call *call, CUresult r)
{
	if (!call->waits || r != CUDA_SUCCESS) {
		vgpu_work_end(call, r);
		return;
	}
	/* It is over, and with it what stood before it. */
	if (call->stream)
		vgpu_stream_done(call->stream, call->number);
	vgpu_gate_leave();
	vgpu_thread.nested--;
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

void vgpu_instantiate_begin(struct vgpu_call *call, const CUDA_GRAPH_INSTANTIATE_PARAMS *params, enum vgpu_default d)
{
	if (params && params->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) {
		vgpu_work_begin(call, params->hUploadStream, d);
		return;
	}
	call->gated = false;
	vgpu_thread.nested++;
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
		vgpu_work_count(vgpu_stream_handle(list[i].hStream, VGPU_LEGACY), r);
	vgpu_gate_leave();
	vgpu_thread.nested--;
}
