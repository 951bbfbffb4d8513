/* SPDX-License-Identifier: Apache-2.0 */
/* What is allocated in a context: the table of charges, and the plain allocators. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>

#include "memory.h"

static struct {
	pthread_mutex_t lock;
	struct vgpu_hash hash;
} charges = { .lock = PTHREAD_MUTEX_INITIALIZER };

bool vgpu_memory_reserve(int gpu, uint64_t bytes)
{
	if (vgpu_gate_charge((unsigned)gpu, bytes) == 0)
		return true;
	vgpu_pools_reclaim(gpu);
	return vgpu_gate_charge((unsigned)gpu, bytes) == 0;
}

/* Asked for what no GPU has: the driver says why not. */
CUresult vgpu_memory_refused(void)
{
	CUdeviceptr none;
	CUresult r;

	if (atomic_load_explicit(&vgpu_captures, memory_order_acquire) == 0)
		return CUDA_ERROR_OUT_OF_MEMORY;
	r = VGPU_REAL(cuMemAlloc_v2)(&none, (size_t)1 << 60);
	if (r == CUDA_SUCCESS)
		VGPU_REAL(cuMemFree_v2)(none);
	if (r >= CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && r <= CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
		return r;
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static void drop(struct vgpu_charge *c)
{
	vgpu_gate_refund(c->gpu, c->bytes);
	free(c);
}

CUresult vgpu_charge_begin(struct vgpu_charge **out, int gpu, uint64_t bytes)
{
	struct vgpu_charge *c;

	*out = NULL;
	if (gpu < 0 || bytes == 0)
		return CUDA_SUCCESS;
	c = calloc(1, sizeof(*c));
	if (!c)
		return CUDA_ERROR_OUT_OF_MEMORY;
	c->gpu = (unsigned)gpu;
	c->bytes = bytes;
	if (VGPU_REAL(cuCtxGetCurrent)(&c->context) != CUDA_SUCCESS)
		c->context = NULL;
	if (!vgpu_memory_reserve(gpu, bytes)) {
		free(c);
		return vgpu_memory_refused();
	}
	*out = c;
	return CUDA_SUCCESS;
}

void vgpu_charge_end(struct vgpu_charge *c, CUresult r, enum vgpu_charge_kind kind, uint64_t key)
{
	struct vgpu_node *stale;

	if (!c)
		return;
	if (r != CUDA_SUCCESS) {
		drop(c);
		return;
	}
	c->node.kind = kind;
	c->node.key = key;
	pthread_mutex_lock(&charges.lock);
	/* The driver gave it out again, so the former one is gone: by a way that
	 * no hook saw. */
	stale = vgpu_hash_take(&charges.hash, kind, key);
	vgpu_hash_add(&charges.hash, &c->node);
	pthread_mutex_unlock(&charges.lock);
	if (stale)
		drop((struct vgpu_charge *)stale);
}

struct vgpu_charge *vgpu_charge_take(enum vgpu_charge_kind kind, uint64_t key)
{
	struct vgpu_node *n;

	pthread_mutex_lock(&charges.lock);
	n = vgpu_hash_take(&charges.hash, kind, key);
	pthread_mutex_unlock(&charges.lock);
	return (struct vgpu_charge *)n;
}

static bool in_context(struct vgpu_node *n, const void *context)
{
	return ((struct vgpu_charge *)n)->context == context;
}

struct vgpu_charge *vgpu_charges_take_context(CUcontext context)
{
	struct vgpu_node *list;

	pthread_mutex_lock(&charges.lock);
	list = vgpu_hash_take_if(&charges.hash, in_context, context);
	pthread_mutex_unlock(&charges.lock);
	return (struct vgpu_charge *)list;
}

void vgpu_charge_taken(struct vgpu_charge *list, bool gone)
{
	struct vgpu_node *n = (struct vgpu_node *)list, *next;

	for (; n; n = next) {
		next = n->next;
		if (gone) {
			drop((struct vgpu_charge *)n);
			continue;
		}
		pthread_mutex_lock(&charges.lock);
		vgpu_hash_add(&charges.hash, n);
		pthread_mutex_unlock(&charges.lock);
	}
}

VGPU_HOOK(vgpu_mem_alloc, cuMemAlloc_v2, CUdeviceptr *dptr, size_t bytes)
{
	struct vgpu_charge *c;
	CUresult r;

	if (!vgpu_managed(caller))
		return real(dptr, bytes);
	vgpu_thread.nested++;
	r = vgpu_charge_begin(&c, vgpu_current_gpu(), bytes);
	if (r == CUDA_SUCCESS) {
		r = real(dptr, bytes);
		vgpu_charge_end(c, r, VGPU_CHARGE_POINTER, r == CUDA_SUCCESS ? *dptr : 0);
	}
	vgpu_thread.nested--;
	return r;
}

VGPU_HOOK(vgpu_mem_alloc_v1, cuMemAlloc, CUdeviceptr_v1 *dptr, unsigned int bytes)
{
	struct vgpu_charge *c;
	CUresult r;

	if (!vgpu_managed(caller))
		return real(dptr, bytes);
	vgpu_thread.nested++;
	r = vgpu_charge_begin(&c, vgpu_current_gpu(), bytes);
	if (r == CUDA_SUCCESS) {
		r = real(dptr, bytes);
		vgpu_charge_end(c, r, VGPU_CHARGE_POINTER, r == CUDA_SUCCESS ? *dptr : 0);
	}
	vgpu_thread.nested--;
	return r;
}

VGPU_HOOK(vgpu_mem_alloc_managed, cuMemAllocManaged, CUdeviceptr *dptr, size_t bytes, unsigned int flags)
{
	struct vgpu_charge *c;
	CUresult r;

	if (!vgpu_managed(caller))
		return real(dptr, bytes, flags);
	vgpu_thread.nested++;
	r = vgpu_charge_begin(&c, vgpu_current_gpu(), bytes);
	if (r == CUDA_SUCCESS) {
		r = real(dptr, bytes, flags);
		vgpu_charge_end(c, r, VGPU_CHARGE_POINTER, r == CUDA_SUCCESS ? *dptr : 0);
	}
	vgpu_thread.nested--;
	return r;
}

/* Rows of a pitch as drivers choose it; 0 for a size that no driver can give. */
#define PITCH 512u
static uint64_t rows(uint64_t width, uint64_t height)
{
	uint64_t bytes;

	if (width > UINT64_MAX - (PITCH - 1) || __builtin_mul_overflow((width + PITCH - 1) / PITCH * PITCH, height, &bytes))
		return 0;
	return bytes;
}

/* The driver chose another pitch. False: there is not so much. */
static bool correct(struct vgpu_charge *c, uint64_t pitch, uint64_t height)
{
	uint64_t bytes;

	if (!c)
		return true;
	if (__builtin_mul_overflow(pitch, height, &bytes))
		return false;
	if (bytes > c->bytes && !vgpu_memory_reserve((int)c->gpu, bytes - c->bytes))
		return false;
	if (bytes < c->bytes)
		vgpu_gate_refund(c->gpu, c->bytes - bytes);
	c->bytes = bytes;
	return true;
}

VGPU_HOOK(vgpu_mem_alloc_pitch, cuMemAllocPitch_v2, CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height,
	  unsigned int element)
{
	CUdeviceptr old_dptr = dptr ? *dptr : 0;
	size_t old_pitch = pitch ? *pitch : 0;
	struct vgpu_charge *c;
	CUresult r;

	if (!vgpu_managed(caller))
		return real(dptr, pitch, width, height, element);
	vgpu_thread.nested++;
	r = vgpu_charge_begin(&c, vgpu_current_gpu(), rows(width, height));
	if (r == CUDA_SUCCESS) {
		r = real(dptr, pitch, width, height, element);
		if (r == CUDA_SUCCESS && !correct(c, *pitch, height)) {
			VGPU_REAL(cuMemFree_v2)(*dptr);
			*dptr = old_dptr;
			*pitch = old_pitch;
			r = CUDA_ERROR_OUT_OF_MEMORY;
		}
		vgpu_charge_end(c, r, VGPU_CHARGE_POINTER, r == CUDA_SUCCESS ? *dptr : 0);
	}
	vgpu_thread.nested--;
	return r;
}

VGPU_HOOK(vgpu_mem_alloc_pitch_v1, cuMemAllocPitch, CUdeviceptr_v1 *dptr, unsigned int *pitch, unsigned int width,
	  unsigned int height, unsigned int element)
{
	CUdeviceptr_v1 old_dptr = dptr ? *dptr : 0;
	unsigned int old_pitch = pitch ? *pitch : 0;
	struct vgpu_charge *c;
	CUresult r;

	if (!vgpu_managed(caller))
		return real(dptr, pitch, width, height, element);
	vgpu_thread.nested++;
	r = vgpu_charge_begin(&c, vgpu_current_gpu(), rows(width, height));
	if (r == CUDA_SUCCESS) {
		r = real(dptr, pitch, width, height, element);
		if (r == CUDA_SUCCESS && !correct(c, *pitch, height)) {
			VGPU_REAL(cuMemFree)(*dptr);
			*dptr = old_dptr;
			*pitch = old_pitch;
			r = CUDA_ERROR_OUT_OF_MEMORY;
		}
		vgpu_charge_end(c, r, VGPU_CHARGE_POINTER, r == CUDA_SUCCESS ? *dptr : 0);
	}
	vgpu_thread.nested--;
	return r;
}

VGPU_HOOK(vgpu_mem_free, cuMemFree_v2, CUdeviceptr dptr)
{
	struct vgpu_charge *c;
	CUresult r;

	if (!vgpu_managed(caller))
		return real(dptr);
	vgpu_thread.nested++;
	c = vgpu_charge_take(VGPU_CHARGE_POINTER, dptr);
	r = real(dptr);
	vgpu_charge_taken(c, r == CUDA_SUCCESS);
	vgpu_thread.nested--;
	return r;
}

VGPU_HOOK(vgpu_mem_free_v1, cuMemFree, CUdeviceptr_v1 dptr)
{
	struct vgpu_charge *c;
	CUresult r;

	if (!vgpu_managed(caller))
		return real(dptr);
	vgpu_thread.nested++;
	c = vgpu_charge_take(VGPU_CHARGE_POINTER, dptr);
	r = real(dptr);
	vgpu_charge_taken(c, r == CUDA_SUCCESS);
	vgpu_thread.nested--;
	return r;
}

void vgpu_context_made(struct vgpu_call *call, CUresult r, CUdevice device)
{
	(void)call;
	if (r == CUDA_SUCCESS)
		vgpu_driver_changed(device);
	vgpu_nested_end();
}

/* A library may have a module in each context. */
void vgpu_library_changed(struct vgpu_call *call, CUresult r)
{
	(void)call;
	if (r == CUDA_SUCCESS)
		vgpu_driver_changed(-1);
	vgpu_nested_end();
}

void vgpu_module_changed(struct vgpu_call *call, CUresult r)
{
	CUdevice device;

	(void)call;
	if (r == CUDA_SUCCESS)
		vgpu_driver_changed(VGPU_REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS ? device : -1);
	vgpu_nested_end();
}
