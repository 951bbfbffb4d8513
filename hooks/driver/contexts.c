/* SPDX-License-Identifier: Apache-2.0 */
/* The end of streams and contexts: work in flight on them stays watched, and
 * the library's thread is kept out while they go. The order is always: the probe,
 * the records out of the table, the driver's call. */
#define _GNU_SOURCE
#include <pthread.h>

#include "driver.h"
#include "memory.h"

#define DEVICES  64
#define ATTACHED 64

/* The primary contexts, and how often the application retained each. A device's
 * lock is held across the driver's own call, so that the count says which release
 * is the last one; no thread waits at the gate with it. The driver takes long to
 * make a context, and threads make those of several devices at once. */
static struct {
	pthread_mutex_t lock[DEVICES];
	CUcontext context[DEVICES];
	unsigned retained[DEVICES];
} primary = { .lock = { [0 ... DEVICES - 1] = PTHREAD_MUTEX_INITIALIZER } };

/* The same for contexts that cuCtxAttach holds beyond their creation. */
static struct {
	pthread_mutex_t lock;
	struct {
		CUcontext context;
		unsigned extra;
	} list[ATTACHED];
	bool full;                 /* one was not counted: no cuCtxDetach proves anything */
} attached = { .lock = PTHREAD_MUTEX_INITIALIZER };

void vgpu_stream_destroy_begin(struct vgpu_call *call, CUstream stream)
{
	struct vgpu_stream *s;

	vgpu_thread.nested++;
	call->taken = NULL;
	if (stream == NULL || stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD) {
		vgpu_fence_share();
		return;
	}
	s = vgpu_stream_find(stream);
	if (s && vgpu_stream_busy(s) &&
	    !(atomic_load_explicit(&vgpu_captures, memory_order_acquire) > 0 && vgpu_is_captured(stream))) {
		/* Not within the fence: the wait may be long. */
		if (vgpu_probe(s, stream) != CUDA_SUCCESS && vgpu_stream_busy(s))
			vgpu_wait_for(s, stream);
	}
	vgpu_fence_share();
	call->taken = vgpu_streams_take(stream);
}

void vgpu_stream_destroy_end(struct vgpu_call *call, CUresult r)
{
	if (r == CUDA_SUCCESS)
		vgpu_streams_gone(call->taken, false);
	else
		vgpu_streams_put_back(call->taken);
	vgpu_thread.nested--;
	vgpu_fence_release();
}

/* The fence is shared, the thread nested. */
static void take_records(struct vgpu_call *call, CUcontext context)
{
	vgpu_capture_lock();
	call->taken = context ? vgpu_streams_take_context(context) : NULL;
	vgpu_capture_unlock();
	call->charges = context ? vgpu_charges_take_context(context) : NULL;
}

static void take_context(struct vgpu_call *call, CUcontext context)
{
	vgpu_fence_share();
	vgpu_thread.nested++;
	take_records(call, context);
}

static void end_context(struct vgpu_call *call, bool gone)
{
	vgpu_charge_taken(call->charges, gone);
	if (gone)
		vgpu_streams_gone(call->taken, true);
	else
		vgpu_streams_put_back(call->taken);
	if (gone)
		vgpu_driver_changed(-1);
	vgpu_thread.nested--;
	vgpu_fence_release();
	if (gone)
		vgpu_notify();
}

/* The slot of a context; NULL if nothing beyond its creation holds it. */
static unsigned *extra_locked(CUcontext context)
{
	for (int i = 0; i < ATTACHED; i++)
		if (attached.list[i].extra > 0 && attached.list[i].context == context)
			return &attached.list[i].extra;
	return NULL;
}

/* Forgets, or with n sets, how often a context is attached beyond its creation. */
static unsigned set_extra_locked(CUcontext context, unsigned n)
{
	unsigned *extra = extra_locked(context), old = 0;

	for (int i = 0; !extra && n > 0 && i < ATTACHED; i++) {
		if (attached.list[i].extra == 0) {
			attached.list[i].context = context;
			extra = &attached.list[i].extra;
		}
	}
	if (extra) {
		old = *extra;
		*extra = n;
	} else if (n > 0) {
		attached.full = true;
	}
	return old;
}

void vgpu_context_destroy_begin(struct vgpu_call *call, CUcontext context)
{
	call->context = context;
	/* Now: the handle may be a new context's when the call returns. */
	pthread_mutex_lock(&attached.lock);
	call->n = set_extra_locked(context, 0);
	pthread_mutex_unlock(&attached.lock);
	take_context(call, context);
}

void vgpu_context_destroy_end(struct vgpu_call *call, CUresult r)
{
	if (r != CUDA_SUCCESS && call->n > 0) {
		pthread_mutex_lock(&attached.lock);
		set_extra_locked(call->context, call->n);
		pthread_mutex_unlock(&attached.lock);
	}
	end_context(call, r == CUDA_SUCCESS);
}

void vgpu_context_attach_begin(struct vgpu_call *call)
{
	(void)call;
	pthread_mutex_lock(&attached.lock);
	vgpu_thread.nested++;
}

void vgpu_context_attach_end(struct vgpu_call *call, CUresult r, CUcontext *context)
{
	unsigned *extra;

	(void)call;
	vgpu_thread.nested--;
	if (r == CUDA_SUCCESS && context) {
		extra = extra_locked(*context);
		set_extra_locked(*context, extra ? *extra + 1 : 1);
	}
	pthread_mutex_unlock(&attached.lock);
}

void vgpu_context_detach_begin(struct vgpu_call *call, CUcontext context)
{
	pthread_mutex_lock(&attached.lock);
	/* Most only lower a count: nothing ends then. */
	call->last = context && !attached.full && !extra_locked(context);
	take_context(call, call->last ? context : NULL);
}

void vgpu_context_detach_end(struct vgpu_call *call, CUresult r, CUcontext context)
{
	unsigned *extra;

	if (r == CUDA_SUCCESS && !call->last) {
		extra = extra_locked(context);
		if (extra)
			--*extra;
	}
	pthread_mutex_unlock(&attached.lock);
	end_context(call, r == CUDA_SUCCESS && call->last);
}

static bool known(CUdevice device)
{
	return device >= 0 && device < DEVICES;
}

/* The driver refuses a device that is not known here. */
static void lock_primary(struct vgpu_call *call, CUdevice device)
{
	call->device = device;
	if (known(device))
		pthread_mutex_lock(&primary.lock[device]);
}

static void unlock_primary(struct vgpu_call *call)
{
	if (known(call->device))
		pthread_mutex_unlock(&primary.lock[call->device]);
}

/* The primary context of a device, which somebody may have retained by a way that no
 * hook sees, as green contexts do; NULL if there is none. With its lock held. */
static CUcontext primary_of(CUdevice device)
{
	unsigned int flags = 0;
	CUcontext context;
	int active = 0;

	if (!known(device) || primary.context[device])
		return known(device) ? primary.context[device] : NULL;
	vgpu_thread.nested++;
	/* It is retained already, so that this neither makes nor ends one. */
	if (VGPU_REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) == CUDA_SUCCESS && active &&
	    VGPU_REAL(cuDevicePrimaryCtxRetain)(&context, device) == CUDA_SUCCESS) {
		VGPU_REAL(cuDevicePrimaryCtxRelease_v2)(device);
		primary.context[device] = context;
	}
	vgpu_thread.nested--;
	return primary.context[device];
}

/* After a call that released it once, with its lock held: is it gone? Only the
 * driver knows. */
static bool primary_gone(struct vgpu_call *call, CUdevice device)
{
	unsigned int flags = 0;
	int active = 1;

	if (VGPU_REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) != CUDA_SUCCESS || active)
		return false;
	if (known(device))
		primary.context[device] = NULL;
	if (!call->last && call->context)
		take_records(call, call->context);
	return true;
}

void vgpu_primary_retain_begin(struct vgpu_call *call, CUdevice device)
{
	lock_primary(call, device);
	vgpu_thread.nested++;
}

void vgpu_primary_retain_end(struct vgpu_call *call, CUresult r, CUcontext *context, CUdevice device)
{
	if (r == CUDA_SUCCESS && context && known(device)) {
		primary.context[device] = *context;
		if (primary.retained[device]++ == 0)
			vgpu_driver_changed(device);
	}
	unlock_primary(call);
	vgpu_thread.nested--;
}

void vgpu_primary_reset_begin(struct vgpu_call *call, CUdevice device)
{
	lock_primary(call, device);
	take_context(call, primary_of(device));
}

void vgpu_primary_reset_end(struct vgpu_call *call, CUresult r)
{
	if (r == CUDA_SUCCESS && known(call->device))
		primary.context[call->device] = NULL;
	unlock_primary(call);
	end_context(call, r == CUDA_SUCCESS);
}

void vgpu_primary_release_begin(struct vgpu_call *call, CUdevice device)
{
	lock_primary(call, device);
	/* Other threads may well use it until the last release. */
	call->last = known(device) && primary.retained[device] <= 1;
	call->context = primary_of(device);
	take_context(call, call->last ? call->context : NULL);
}

void vgpu_primary_release_end(struct vgpu_call *call, CUresult r, CUdevice device)
{
	bool gone;

	if (r == CUDA_SUCCESS && known(device) && primary.retained[device] > 0)
		primary.retained[device]--;
	gone = r == CUDA_SUCCESS && primary_gone(call, device);
	unlock_primary(call);
	end_context(call, gone);
}

static CUdevice device_of(CUcontext context)
{
	struct vgpu_own own;
	CUdevice device = -1;

	if (vgpu_own_begin(&own, context) != CUDA_SUCCESS || VGPU_REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
		device = -1;
	vgpu_own_end(&own);
	return device;
}

static bool may_ask(struct vgpu_stream *s, struct vgpu_call *call)
{
	return vgpu_stream_of_green(s, call->green) && vgpu_stream_busy(s) &&
	       !(atomic_load_explicit(&vgpu_captures, memory_order_acquire) > 0 &&
		 vgpu_is_captured(atomic_load_explicit(&s->handle, memory_order_relaxed)));
}

/* What is in flight on a green context's streams, before they are detached from it:
 * nothing but events can be asked about them then. What stands before a capture has
 * a probe already. */
static bool watch_detached(struct vgpu_stream *s, void *call)
{
	if (may_ask(s, call))
		vgpu_probe(s, atomic_load_explicit(&s->handle, memory_order_relaxed));
	return true;
}

/* Where that could not be done, as in cuStreamDestroy. */
static bool wait_unwatched(struct vgpu_stream *s, void *arg)
{
	struct vgpu_call *call = arg;

	if (may_ask(s, call) &&
	    (call->own || atomic_load_explicit(&s->probe_covers, memory_order_acquire) < vgpu_stream_submitted(s)))
		vgpu_wait_for(s, atomic_load_explicit(&s->handle, memory_order_relaxed));
	return true;
}

/* A context of its own takes its streams' events along, for all that is known: then
 * their work is waited for, but not what a wait for a whole context may break. */
static void wait_for_green(CUcontext context)
{
	struct vgpu_call wait = { 0 };
	struct vgpu_own own;
	CUresult r;

	if (atomic_load_explicit(&vgpu_captures, memory_order_acquire) > 0)
		return;
	vgpu_sync_context_begin(&wait, context);
	r = CUDA_ERROR_NOT_READY;
	if (wait.n > 0) {
		r = vgpu_own_begin(&own, context);
		if (r == CUDA_SUCCESS)
			r = VGPU_REAL(cuCtxSynchronize)();
		vgpu_own_end(&own);
	}
	vgpu_sync_context_end(&wait, r);
}

void vgpu_green_made(struct vgpu_call *call, CUresult r, CUdevice device)
{
	if (r == CUDA_SUCCESS)
		vgpu_streams_ask_green();
	vgpu_context_made(call, r, device);
}

/*
 * A driver may convert a green context into a handle of its own or into the primary
 * context, which others use too. In both its end detaches its streams: they and what
 * runs there stay, and only cuStreamDestroy takes them any more. It may be the last
 * that held the primary context.
 */
void vgpu_green_destroy_begin(struct vgpu_call *call, CUgreenCtx green)
{
	CUcontext context = NULL;

	vgpu_thread.nested++;
	if (!green || VGPU_REAL(cuCtxFromGreenCtx)(&context, green) != CUDA_SUCCESS)
		context = NULL;
	lock_primary(call, context ? device_of(context) : -1);
	call->context = primary_of(call->device);
	unlock_primary(call); /* what follows may be long */
	call->own = context && context != call->context;
	call->green = green;
	if (call->own) {
		wait_for_green(context);
	} else if (green) {
		/* Nobody destroys one of the streams meanwhile. */
		vgpu_fence_hold();
		vgpu_streams_each(watch_detached, call);
		vgpu_fence_release();
	}
	if (green)
		vgpu_streams_each(wait_unwatched, call);
	lock_primary(call, call->device);
	vgpu_fence_share();
	call->last = known(call->device) && primary.retained[call->device] == 0;
	vgpu_capture_lock();
	call->detached = green ? vgpu_streams_take_green(green, call->own ? context : NULL) : NULL;
	vgpu_capture_unlock();
	take_records(call, call->last ? call->context : NULL);
}

void vgpu_green_destroy_end(struct vgpu_call *call, CUresult r)
{
	bool gone = r == CUDA_SUCCESS && primary_gone(call, call->device);

	unlock_primary(call);
	if (r == CUDA_SUCCESS)
		vgpu_streams_gone(call->detached, gone || call->own);
	else
		vgpu_streams_put_back(call->detached);
	if (r == CUDA_SUCCESS && !gone)
		vgpu_driver_changed(call->device);
	end_context(call, gone);
	if (!gone)
		vgpu_notify();
}
