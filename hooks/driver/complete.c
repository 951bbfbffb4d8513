/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is in flight. The application's own synchronising calls prove most of
 * it complete (sync.c); for the rest the library's thread asks the driver, and
 * only while somebody else wants the GPU.
 *
 * How it asks, by kind of stream:
 *   explicit     cuStreamQuery, unless the stream is capturing
 *   legacy       cuStreamQuery, but never while a capture is open
 *   per-thread   only its thread can name it: by an event behind the whole
 *                context, but none can be recorded while a capture is open, and
 *                older drivers have no such call: then by the probe, an event
 *                that the thread records after each submission
 *   destroyed    by the probe, recorded before the stream went
 * A probe that covers everything submitted is always the first choice. Work counts as over only when
 * the driver says so: a probe that is missing says nothing.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>

#include "driver.h"

static pthread_rwlock_t fence = PTHREAD_RWLOCK_INITIALIZER;

void vgpu_fence_share(void)
{
	pthread_rwlock_rdlock(&fence);
}

void vgpu_fence_hold(void)
{
	pthread_rwlock_wrlock(&fence);
}

void vgpu_fence_release(void)
{
	pthread_rwlock_unlock(&fence);
}

CUresult vgpu_own_begin(struct vgpu_own *own, CUcontext context)
{
	CUcontext current = NULL;
	CUresult r;

	*own = (struct vgpu_own){ .mode = CU_STREAM_CAPTURE_MODE_RELAXED };
	vgpu_thread.nested++;
	/* Without a capture too: another thread may begin one meanwhile. */
	own->exchanged = VGPU_REAL(cuThreadExchangeStreamCaptureMode)(&own->mode) == CUDA_SUCCESS;
	if (!context || (VGPU_REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current == context))
		return CUDA_SUCCESS;
	r = VGPU_REAL(cuCtxPushCurrent_v2)(context);
	own->pushed = r == CUDA_SUCCESS;
	return r;
}

void vgpu_own_end(struct vgpu_own *own)
{
	CUcontext popped;

	if (own->pushed)
		VGPU_REAL(cuCtxPopCurrent_v2)(&popped);
	if (own->exchanged)
		VGPU_REAL(cuThreadExchangeStreamCaptureMode)(&own->mode);
	vgpu_thread.nested--;
}

/* Does this answer to a question about a stream say that its work is over? An
 * error that is none of these means that the stream or its context is dead. */
bool vgpu_over(CUresult r)
{
	switch (r) {
	case CUDA_ERROR_NOT_READY:
	case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
	case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
	case CUDA_ERROR_STREAM_CAPTURE_MERGE:
	case CUDA_ERROR_STREAM_CAPTURE_UNMATCHED:
	case CUDA_ERROR_STREAM_CAPTURE_UNJOINED:
	case CUDA_ERROR_STREAM_CAPTURE_ISOLATION:
	case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
	case CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD:
	case CUDA_ERROR_CAPTURED_EVENT:
	case CUDA_ERROR_OUT_OF_MEMORY:
	case CUDA_ERROR_NOT_SUPPORTED:
	case CUDA_ERROR_NOT_PERMITTED:
	case CUDA_ERROR_STREAM_DETACHED: /* its green context is gone; what runs there runs on */
		return false;
	default:
		return true;
	}
}

/* Does this answer to another call say that its context is dead? Such a call can
 * also fail for reasons of its own. */
static bool dead(CUresult r)
{
	return r != CUDA_SUCCESS && r != CUDA_ERROR_INVALID_HANDLE && r != CUDA_ERROR_INVALID_VALUE && vgpu_over(r);
}

/* The same, of a call within a context that could be entered: one that makes or
 * records an event also fails for reasons that leave all work running (a system
 * call that failed), so the error is confirmed by a question about a stream of
 * that context, which this thread may name and which is not captured. */
static bool died(CUresult r, CUstream handle)
{
	CUresult again;

	if (!dead(r))
		return false;
	again = VGPU_REAL(cuStreamQuery)(handle);
	return again != CUDA_SUCCESS && vgpu_over(again);
}

static CUresult probe_event(struct vgpu_stream *s, CUevent *event)
{
	CUevent expected = NULL;
	CUresult r;

	*event = atomic_load_explicit(&s->probe, memory_order_acquire);
	if (*event)
		return CUDA_SUCCESS;
	r = VGPU_REAL(cuEventCreate)(event, CU_EVENT_DISABLE_TIMING);
	if (r == CUDA_SUCCESS &&
	    !atomic_compare_exchange_strong_explicit(&s->probe, &expected, *event, memory_order_acq_rel, memory_order_acquire)) {
		VGPU_REAL(cuEventDestroy_v2)(*event);
		*event = expected;
	}
	return r;
}

static void covered(struct vgpu_stream *s, uint64_t number)
{
	uint64_t old = atomic_load_explicit(&s->probe_covers, memory_order_relaxed);

	/* After the record, and only upwards: whoever reads the number and then
	 * asks the event gets the answer for that number or a later one. */
	while (old < number && !atomic_compare_exchange_weak_explicit(&s->probe_covers, &old, number, memory_order_release,
								      memory_order_relaxed))
		;
	atomic_store_explicit(&s->unprobed, false, memory_order_relaxed);
}

CUresult vgpu_probe(struct vgpu_stream *s, CUstream handle)
{
	/* Before the record: what the event stands behind is at least this. */
	uint64_t number = vgpu_stream_submitted(s);
	CUcontext context = atomic_load_explicit(&s->context, memory_order_relaxed);
	CUevent event;
	struct vgpu_own own;
	CUresult r;
	bool entered;

	if (!context)
		return CUDA_ERROR_NOT_SUPPORTED; /* an event needs one; the stream can still be asked */
	r = vgpu_own_begin(&own, context);
	entered = r == CUDA_SUCCESS;
	/* Beside a capture of its context the legacy stream must be left alone:
	 * a record would fail, and break the capture. */
	if (r == CUDA_SUCCESS && handle == CU_STREAM_LEGACY &&
	    atomic_load_explicit(&vgpu_captures, memory_order_acquire) > 0 && vgpu_is_captured(handle))
		r = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	if (r == CUDA_SUCCESS)
		r = probe_event(s, &event);
	if (r == CUDA_SUCCESS)
		r = VGPU_REAL(cuEventRecord)(event, handle);
	if (r == CUDA_SUCCESS)
		covered(s, number);
	else if (entered ? died(r, handle) : dead(r))
		vgpu_stream_done(s, number);
	else
		atomic_store_explicit(&s->unprobed, true, memory_order_relaxed);
	vgpu_own_end(&own);
	return r;
}

static bool probe_legacy(struct vgpu_stream *s, void *unused)
{
	(void)unused;
	if (atomic_load_explicit(&s->state, memory_order_acquire) == VGPU_STREAM_LIVE &&
	    atomic_load_explicit(&s->handle, memory_order_relaxed) == CU_STREAM_LEGACY && vgpu_stream_busy(s) &&
	    atomic_load_explicit(&s->probe_covers, memory_order_acquire) < vgpu_stream_submitted(s))
		vgpu_probe(s, CU_STREAM_LEGACY);
	return true;
}

void vgpu_probe_legacy_streams(void)
{
	vgpu_streams_each(probe_legacy, NULL);
}

void vgpu_wait_for(struct vgpu_stream *s, CUstream handle)
{
	uint64_t number = vgpu_stream_submitted(s);
	struct vgpu_own own;

	if (vgpu_own_begin(&own, atomic_load_explicit(&s->context, memory_order_relaxed)) == CUDA_SUCCESS &&
	    vgpu_over(VGPU_REAL(cuStreamSynchronize)(handle)))
		vgpu_stream_done(s, number);
	vgpu_own_end(&own);
}

/* The driver has cuCtxRecordEvent, but not for all that is asked of it. */
static atomic_bool context_events_refused;

bool vgpu_context_events(void)
{
	void *address;

	return !atomic_load_explicit(&context_events_refused, memory_order_relaxed) &&
	       vgpu_has(VGPU_NAME_cuCtxRecordEvent, &address);
}

/* For work that nothing covers on a stream that this thread can not name. No
 * capture is open, and none begins meanwhile: such a record would break it. In
 * the stream's context. */
static void probe_context(struct vgpu_stream *s, uint64_t number)
{
	CUcontext context = atomic_load_explicit(&s->context, memory_order_relaxed);
	CUevent event;
	CUresult r;

	if (!context || !vgpu_context_events())
		return;
	r = probe_event(s, &event);
	if (r == CUDA_SUCCESS)
		r = VGPU_REAL(cuCtxRecordEvent)(context, event);
	if (r == CUDA_SUCCESS)
		covered(s, number);
	else if (died(r, CU_STREAM_LEGACY)) /* no capture is open that it could disturb */
		vgpu_stream_done(s, number);
	else if (r != CUDA_ERROR_OUT_OF_MEMORY && r != CUDA_ERROR_OPERATING_SYSTEM)
		atomic_store_explicit(&context_events_refused, true, memory_order_relaxed);
}

/* Only streams that nobody else can ask for. */
static bool probe_unnamed(struct vgpu_stream *s, void *unused)
{
	uint64_t number = vgpu_stream_submitted(s);
	int state = atomic_load_explicit(&s->state, memory_order_acquire);
	struct vgpu_own own;

	(void)unused;
	if (state != VGPU_STREAM_ORPHAN &&
	    (state != VGPU_STREAM_LIVE || atomic_load_explicit(&s->handle, memory_order_relaxed) != CU_STREAM_PER_THREAD))
		return true;
	if (!vgpu_stream_busy(s) || atomic_load_explicit(&s->probe_covers, memory_order_acquire) >= number)
		return true;
	if (vgpu_own_begin(&own, atomic_load_explicit(&s->context, memory_order_relaxed)) == CUDA_SUCCESS)
		probe_context(s, number);
	vgpu_own_end(&own);
	return true;
}

void vgpu_probe_unnamed_streams(void)
{
	vgpu_streams_each(probe_unnamed, NULL);
}

/* One event at a time: one that is recorded anew before it is over would not tell
 * how far the stream has got. The fence keeps captures from beginning. */
static void ask_unnamed(struct vgpu_stream *s, uint64_t number, uint64_t covers)
{
	if (covers <= atomic_load_explicit(&s->completed, memory_order_relaxed) &&
	    atomic_load_explicit(&vgpu_captures, memory_order_acquire) == 0)
		probe_context(s, number);
}

/* Asks the driver about one stream; the fence is held exclusively. */
static void ask(struct vgpu_stream *s)
{
	uint64_t number = vgpu_stream_submitted(s);
	uint64_t covers = atomic_load_explicit(&s->probe_covers, memory_order_acquire);
	bool orphan = atomic_load_explicit(&s->state, memory_order_acquire) == VGPU_STREAM_ORPHAN;
	CUevent probe = atomic_load_explicit(&s->probe, memory_order_acquire);
	CUstream handle = atomic_load_explicit(&s->handle, memory_order_relaxed);
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	unsigned captures;
	struct vgpu_own own;
	CUresult r;

	r = vgpu_own_begin(&own, atomic_load_explicit(&s->context, memory_order_relaxed));
	if (r != CUDA_SUCCESS) {
		if (dead(r)) /* the context is gone, and what ran in it */
			vgpu_stream_done(s, number);
		goto out;
	}
	if (probe && covers > atomic_load_explicit(&s->completed, memory_order_relaxed) &&
	    vgpu_over(VGPU_REAL(cuEventQuery)(probe)))
		vgpu_stream_done(s, covers);
	/* Of a long queue it may be known how far it has got. */
	vgpu_window_look(s);
	if (covers == number || !vgpu_stream_busy(s))
		goto out;
	if (orphan || handle == CU_STREAM_PER_THREAD) {
		ask_unnamed(s, number, covers);
		goto out;
	}
	captures = atomic_load_explicit(&vgpu_captures, memory_order_acquire);
	if (captures > 0) {
		if (handle == CU_STREAM_LEGACY)
			goto out;
		if (VGPU_REAL(cuStreamIsCapturing)(handle, &status) != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE)
			goto out;
	}
	r = VGPU_REAL(cuStreamQuery)(handle);
	if (r == CUDA_ERROR_STREAM_DETACHED)
		ask_unnamed(s, number, covers); /* it can not be asked any more */
	else if (vgpu_over(r))
		vgpu_stream_done(s, number);
out:
	vgpu_own_end(&own);
}

static void forget_orphan(struct vgpu_stream *s)
{
	CUevent probe = atomic_load_explicit(&s->probe, memory_order_acquire);
	struct vgpu_own own;
	bool closed = true;

	if (probe || !vgpu_window_empty(s)) {
		if (vgpu_own_begin(&own, atomic_load_explicit(&s->context, memory_order_relaxed)) == CUDA_SUCCESS) {
			closed = vgpu_window_close(s);
			if (probe && closed)
				VGPU_REAL(cuEventDestroy_v2)(probe);
		}
		vgpu_own_end(&own);
	}
	if (closed)
		vgpu_stream_recycle(s);
}

static bool is_orphan(struct vgpu_stream *s)
{
	return atomic_load_explicit(&s->state, memory_order_acquire) == VGPU_STREAM_ORPHAN;
}

static bool poll_one(struct vgpu_stream *s, void *arg)
{
	bool *busy = arg;

	if (vgpu_stream_busy(s))
		ask(s);
	if (vgpu_stream_busy(s))
		*busy = true;
	else if (is_orphan(s))
		forget_orphan(s);
	return true;
}

bool vgpu_poll(void *arg)
{
	static bool relaxed; /* the library's thread alone */
	CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
	bool busy = vgpu_streams_lost();

	(void)arg;
	if (!atomic_load_explicit(&vgpu_active, memory_order_acquire))
		return vgpu_in_flight(NULL);
	if (pthread_rwlock_trywrlock(&fence) != 0)
		return true; /* a context or stream is being destroyed: look again soon */
	vgpu_thread.nested++;
	if (!relaxed)
		relaxed = VGPU_REAL(cuThreadExchangeStreamCaptureMode)(&mode) == CUDA_SUCCESS;
	vgpu_streams_each(poll_one, &busy);
	vgpu_thread.nested--;
	pthread_rwlock_unlock(&fence);
	return busy;
}

static bool reap_one(struct vgpu_stream *s, void *arg)
{
	int *left = arg;

	if (!is_orphan(s))
		return true;
	if (vgpu_stream_busy(s))
		ask(s);
	if (!vgpu_stream_busy(s))
		forget_orphan(s);
	return --*left > 0;
}

void vgpu_reap(void)
{
	int left = 4;

	if (pthread_rwlock_trywrlock(&fence) != 0)
		return;
	vgpu_streams_each(reap_one, &left);
	pthread_rwlock_unlock(&fence);
}

static bool busy_one(struct vgpu_stream *s, void *arg)
{
	struct vgpu_stream **found = arg;

	if (!vgpu_stream_busy(s))
		return true;
	*found = s;
	return false;
}

bool vgpu_in_flight(void *arg)
{
	/* The one seen busy last: most likely it still is. Relaxed: a guess. */
	static _Atomic(struct vgpu_stream *) hint;
	struct vgpu_stream *s = atomic_load_explicit(&hint, memory_order_relaxed);

	(void)arg;
	if (vgpu_streams_lost() || (s && vgpu_stream_busy(s)))
		return true;
	s = NULL;
	vgpu_streams_each(busy_one, &s);
	if (s)
		atomic_store_explicit(&hint, s, memory_order_relaxed);
	return s != NULL;
}

void vgpu_notify(void)
{
	vgpu_gate_complete(); /* asks vgpu_in_flight first */
}
