/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that wait, ask or release: what they prove, and user events. None is gated but
 * the setting of a user event that something is held for. */
#define _GNU_SOURCE
#include "opencl.h"

/* Is anything of ours to be done around a call that is not work? */
static bool begin(void)
{
	if (!vgpu_managed())
		return false;
	vgpu_cl_thread.nested++;
	return true;
}

static void end(bool began)
{
	if (!began)
		return;
	vgpu_cl_thread.nested--;
	if (!vgpu_cl_thread.callback)
		vgpu_notify();
}

static cl_int CL_API_CALL hook_clFinish(cl_command_queue queue)
{
	struct vgpu_queue *q = vgpu_managed() ? vgpu_queue_use(queue) : NULL;
	uint64_t number = q ? vgpu_queue_submitted(q) : 0;
	bool began = begin();
	cl_int r = vgpu_next.clFinish(queue);

	if (q) {
		if (r == CL_SUCCESS)
			vgpu_queue_done(q, number);
		vgpu_queue_unuse(q);
	}
	end(began);
	return r;
}

static cl_int CL_API_CALL hook_clWaitForEvents(cl_uint n, const cl_event *events)
{
	bool began = begin();
	cl_int r = vgpu_next.clWaitForEvents(n, events);

	end(began);
	return r;
}

static cl_int CL_API_CALL hook_clReleaseCommandQueue(cl_command_queue queue)
{
	bool began = begin();
	cl_int r;

	if (!began)
		return vgpu_next.clReleaseCommandQueue(queue);
	/* Before it: the handle may be given out again before the call returns. It
	 * flushes, so nobody must do so later. */
	vgpu_fence_share();
	vgpu_queue_forget(queue);
	r = vgpu_next.clReleaseCommandQueue(queue);
	vgpu_fence_release();
	end(began);
	return r;
}

static cl_int CL_API_CALL hook_clReleaseContext(cl_context context)
{
	/* First: events that nobody needs any more keep their context. */
	end(begin());
	return vgpu_next.clReleaseContext(context);
}

/* ---- events ------------------------------------------------------------------- */

static cl_int CL_API_CALL hook_clGetEventInfo(cl_event event, cl_event_info what, size_t size, void *value, size_t *size_ret)
{
	bool began = begin();
	cl_int r = vgpu_next.clGetEventInfo(event, what, size, value, size_ret);

	if (began)
		vgpu_cl_thread.nested--;
	if (!began || r != CL_SUCCESS || !value)
		return r;
	if (what == CL_EVENT_COMMAND_EXECUTION_STATUS && *(cl_int *)value <= CL_COMPLETE && !vgpu_cl_thread.callback)
		vgpu_notify();
	/* Without ours. */
	if (what == CL_EVENT_REFERENCE_COUNT) {
		*(cl_uint *)value -= vgpu_queue_references(event);
		pthread_mutex_lock(&vgpu_lock);
		*(cl_uint *)value -= vgpu_held_find(event) != NULL;
		pthread_mutex_unlock(&vgpu_lock);
	}
	return r;
}

static cl_event CL_API_CALL hook_clCreateUserEvent(cl_context context, cl_int *error)
{
	cl_event event = vgpu_next.clCreateUserEvent(context, error);

	if (!event || !vgpu_managed() || vgpu_held_user(event))
		return event;
	vgpu_next.clReleaseEvent(event);
	if (error)
		*error = CL_OUT_OF_HOST_MEMORY;
	return NULL;
}

static cl_int set_held(struct vgpu_held *h, cl_event event, cl_int status)
{
	cl_int r;

	vgpu_cl_thread.passed = false;
	vgpu_gate_enter();
	if (vgpu_cl_thread.passed) {
		r = vgpu_late_set(h, status) ? CL_SUCCESS : CL_OUT_OF_HOST_MEMORY;
		vgpu_gate_leave();
		if (r != CL_SUCCESS) {
			pthread_mutex_lock(&vgpu_lock);
			h->setting = false;
			pthread_mutex_unlock(&vgpu_lock);
		}
		return r;
	}
	vgpu_cl_thread.nested++;
	r = vgpu_next.clSetUserEventStatus(event, status);
	vgpu_held_resolve(h);
	vgpu_cl_thread.nested--;
	vgpu_gate_leave();
	vgpu_notify(); /* who waits for it may have looked before it was counted */
	return r;
}

static cl_int CL_API_CALL hook_clSetUserEventStatus(cl_event event, cl_int status)
{
	struct vgpu_held *h;
	bool needed, setting;
	cl_int r;

	if (!vgpu_managed() || status > CL_COMPLETE)
		return vgpu_next.clSetUserEventStatus(event, status);
	pthread_mutex_lock(&vgpu_lock);
	h = vgpu_held_find(event);
	if (!h || !h->user) {
		pthread_mutex_unlock(&vgpu_lock);
		return vgpu_next.clSetUserEventStatus(event, status);
	}
	setting = h->setting;
	h->setting = true;
	needed = vgpu_held_needed(h);
	/* What is enqueued behind it from here on can run. */
	if (!setting && !needed)
		vgpu_held_drop(h);
	pthread_mutex_unlock(&vgpu_lock);
	if (setting)
		return CL_INVALID_OPERATION;
	if (needed)
		return set_held(h, event, status);
	vgpu_cl_thread.nested++;
	r = vgpu_next.clSetUserEventStatus(event, status);
	vgpu_held_free(h);
	vgpu_cl_thread.nested--;
	return r;
}

/* The program lets go of a user event that was never set, and that nothing waits for. */
static struct vgpu_held *abandoned(cl_event event)
{
	struct vgpu_held *h;
	cl_uint references = 0;

	pthread_mutex_lock(&vgpu_lock);
	h = vgpu_held_find(event);
	pthread_mutex_unlock(&vgpu_lock);
	if (!h || vgpu_next.clGetEventInfo(event, CL_EVENT_REFERENCE_COUNT, sizeof(references), &references, NULL) != CL_SUCCESS ||
	    references > 2)
		return NULL;
	pthread_mutex_lock(&vgpu_lock);
	h = vgpu_held_find(event);
	if (h && h->user && !h->setting && !vgpu_held_needed(h))
		vgpu_held_drop(h);
	else
		h = NULL;
	pthread_mutex_unlock(&vgpu_lock);
	return h;
}

static cl_int CL_API_CALL hook_clReleaseEvent(cl_event event)
{
	struct vgpu_held *h = vgpu_managed() && event ? abandoned(event) : NULL;
	cl_int r = vgpu_next.clReleaseEvent(event);

	vgpu_held_free(h);
	return r;
}

void vgpu_sync_hooks(void)
{
	VGPU_HOOK(clFinish);
	VGPU_HOOK(clWaitForEvents);
	VGPU_HOOK(clReleaseCommandQueue);
	VGPU_HOOK(clReleaseContext);
	VGPU_HOOK(clGetEventInfo);
	VGPU_HOOK(clCreateUserEvent);
	VGPU_HOOK(clSetUserEventStatus);
	VGPU_HOOK(clReleaseEvent);
}
