/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Captures. A stream joins one not only by cuStreamBeginCapture but also by
 * waiting for an event of a captured stream; so the driver is asked about a
 * stream, but only while some capture is open at all.
 *
 * A capturing stream must not be queried. What was submitted to it before is
 * then watched by a probe that was recorded when the capture began.
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "driver.h"

_Atomic unsigned vgpu_captures;

/* Held while a capture that begins puts probes behind work of other threads: no
 * other one begins until it has, and no context goes. The library's thread never
 * takes it. Not beside vgpu_captures, which each launch reads. */
static _Alignas(64) pthread_mutex_t beginning = PTHREAD_MUTEX_INITIALIZER;

void vgpu_capture_lock(void)
{
	pthread_mutex_lock(&beginning);
}

void vgpu_capture_unlock(void)
{
	pthread_mutex_unlock(&beginning);
}

bool vgpu_is_captured(CUstream handle)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	CUresult r;

	vgpu_thread.nested++;
	r = VGPU_REAL(cuStreamIsCapturing)(handle, &status);
	vgpu_thread.nested--;
	/* An error: the legacy stream beside a capture, where the call itself is
	 * going to fail, or a handle that is none. */
	return r != CUDA_SUCCESS || status != CU_STREAM_CAPTURE_STATUS_NONE;
}

void vgpu_capture_over(struct vgpu_stream *s)
{
	if (atomic_exchange_explicit(&s->capturing, false, memory_order_acq_rel))
		atomic_fetch_sub_explicit(&vgpu_captures, 1, memory_order_acq_rel);
}

static void probe_busy(struct vgpu_stream *s)
{
	if (s && vgpu_stream_busy(s) &&
	    atomic_load_explicit(&s->probe_covers, memory_order_acquire) < vgpu_stream_submitted(s))
		vgpu_probe(s, atomic_load_explicit(&s->handle, memory_order_relaxed));
}

void vgpu_capture_begin_begin(struct vgpu_call *call, CUstream stream, enum vgpu_default d)
{
	unsigned before;

	vgpu_fence_share();
	vgpu_thread.nested++;
	call->stream = vgpu_stream_get(vgpu_stream_handle(stream, d));
	vgpu_capture_lock();
	/* Counted first: who submits to a default stream from now on records its
	 * own probe (see vgpu_work_count). */
	before = atomic_fetch_add_explicit(&vgpu_captures, 1, memory_order_seq_cst);
	/* ... and the record of who did not see the count is seen here. */
	atomic_thread_fence(memory_order_seq_cst);
	/* Of every context: none is asked while any capture is open. The first
	 * one finds none open: whoever else begins waits for the lock. */
	vgpu_probe_legacy_streams();
	if (before == 0)
		vgpu_probe_unnamed_streams();
	vgpu_capture_unlock();
	if (call->stream && !(before > 0 && vgpu_is_captured(vgpu_stream_handle(stream, d))))
		probe_busy(call->stream);
}

void vgpu_capture_begin_end(struct vgpu_call *call, CUresult r)
{
	if (r != CUDA_SUCCESS || !call->stream)
		atomic_fetch_sub_explicit(&vgpu_captures, 1, memory_order_acq_rel);
	else
		atomic_store_explicit(&call->stream->capturing, true, memory_order_release);
	vgpu_thread.nested--;
	vgpu_fence_release();
}

void vgpu_capture_end_begin(struct vgpu_call *call, CUstream stream, enum vgpu_default d)
{
	vgpu_fence_share();
	vgpu_thread.nested++;
	call->handle = vgpu_stream_handle(stream, d);
	call->stream = vgpu_stream_find(call->handle);
}

void vgpu_capture_end_end(struct vgpu_call *call, CUresult r)
{
	/* An invalidated capture ends with an error, a wrong thread's call does
	 * not end it: the driver knows. */
	if (call->stream && (r == CUDA_SUCCESS || !vgpu_is_captured(call->handle)))
		vgpu_capture_over(call->stream);
	vgpu_thread.nested--;
	vgpu_fence_release();
}

void vgpu_stream_wait_begin(struct vgpu_call *call, CUstream stream, enum vgpu_default d)
{
	CUstream handle = vgpu_stream_handle(stream, d);

	/* The stream may start capturing by this call: not while the library's
	 * thread is about to query it. */
	call->fenced = atomic_load_explicit(&vgpu_captures, memory_order_acquire) > 0;
	vgpu_thread.nested++;
	if (!call->fenced)
		return;
	vgpu_fence_share();
	if (!vgpu_is_captured(handle))
		probe_busy(vgpu_stream_find(handle));
}

void vgpu_stream_wait_end(struct vgpu_call *call)
{
	if (call->fenced)
		vgpu_fence_release();
	vgpu_thread.nested--;
}
