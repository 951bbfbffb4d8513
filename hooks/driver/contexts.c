/* SPDX-License-Identifier: Apache-2.0 */
/* The end of streams and contexts: work in flight on them stays watched, and
 * the library's thread is kept out while they go. */
#include "driver.h"

#define DEVICES 64

/* The primary contexts that the application retained. */
static _Atomic(CUcontext) primary[DEVICES];

void vgpu_stream_destroy_begin(struct vgpu_call *call, CUstream stream)
{
	vgpu_fence_share();
	vgpu_thread.nested++;
	call->stream = NULL;
	if (stream != NULL && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD)
		call->stream = vgpu_stream_find(stream);
	if (call->stream && vgpu_stream_busy(call->stream) &&
	    !(atomic_load_explicit(&vgpu_captures, memory_order_acquire) > 0 && vgpu_is_captured(stream)))
		vgpu_probe(call->stream);
}

void vgpu_stream_destroy_end(struct vgpu_call *call, CUresult r)
{
	if (call->stream && r == CUDA_SUCCESS) {
		vgpu_capture_over(call->stream);
		vgpu_stream_destroyed(call->stream);
	}
	vgpu_thread.nested--;
	vgpu_fence_release();
}

void vgpu_context_destroy_begin(struct vgpu_call *call, CUcontext context)
{
	vgpu_fence_share();
	vgpu_thread.nested++;
	call->context = context;
}

void vgpu_context_destroy_end(struct vgpu_call *call, CUresult r)
{
	bool gone = r == CUDA_SUCCESS && call->context;

	if (gone)
		vgpu_streams_drop_context(call->context);
	vgpu_thread.nested--;
	vgpu_fence_release();
	if (gone)
		vgpu_notify();
}

void vgpu_green_destroy_begin(struct vgpu_call *call, CUgreenCtx green)
{
	CUcontext context = NULL;

	vgpu_fence_share();
	vgpu_thread.nested++;
	if (!green || VGPU_REAL(cuCtxFromGreenCtx)(&context, green) != CUDA_SUCCESS)
		context = NULL;
	call->context = context;
}

void vgpu_primary_retain_end(struct vgpu_call *call, CUresult r, CUcontext *context, CUdevice device)
{
	(void)call;
	vgpu_thread.nested--;
	if (r == CUDA_SUCCESS && context && device >= 0 && device < DEVICES)
		atomic_store_explicit(&primary[device], *context, memory_order_release);
}

void vgpu_primary_begin(struct vgpu_call *call, CUdevice device)
{
	vgpu_fence_share();
	vgpu_thread.nested++;
	call->context = NULL;
	if (device >= 0 && device < DEVICES)
		call->context = atomic_load_explicit(&primary[device], memory_order_acquire);
}

void vgpu_primary_release_end(struct vgpu_call *call, CUresult r, CUdevice device)
{
	unsigned int flags = 0;
	int active = 1;

	/* Only the last release destroys it. */
	if (r == CUDA_SUCCESS && (VGPU_REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) != CUDA_SUCCESS || active))
		call->context = NULL;
	vgpu_context_destroy_end(call, r);
}
