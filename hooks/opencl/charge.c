/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory ledger: buffers, images, pipes and shared virtual memory are charged
 * before the implementation is asked, to every GPU of their context, since an
 * implementation may put them on any, and given back when they are gone: of objects a
 * destructor callback says so. What is over the limit is refused as an allocation that
 * failed, and a buffer larger than the largest that we tell of as one of invalid size.
 */
#define _GNU_SOURCE
#include <stdlib.h>

#include "opencl.h"

struct charge {
	struct vgpu_node node;     /* by the pointer, of shared virtual memory */
	uint32_t gpus;
	uint64_t bytes;
};

static struct {
	pthread_mutex_t lock;
	struct vgpu_hash by_pointer;
} svm = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void give_back(uint32_t gpus, uint64_t bytes)
{
	for (unsigned i = 0; i < VGPU_UUIDS; i++)
		if (gpus >> i & 1)
			vgpu_gate_refund(i, bytes);
}

static bool take(uint32_t gpus, uint64_t bytes)
{
	for (unsigned i = 0; i < VGPU_UUIDS; i++) {
		if (!(gpus >> i & 1) || vgpu_gate_charge(i, bytes) == 0)
			continue;
		give_back(gpus & ((1u << i) - 1), bytes);
		return false;
	}
	return true;
}

static void finish(struct charge *c)
{
	if (!c)
		return;
	give_back(c->gpus, c->bytes);
	free(c);
}

/* Before: *c is NULL if nothing is to be charged. */
static cl_int begin(struct charge **out, cl_context context, uint64_t bytes)
{
	struct charge *c;
	uint32_t gpus;
	bool fits = false;

	*out = NULL;
	if (!vgpu_managed() || !context || bytes == 0)
		return CL_SUCCESS;
	gpus = vgpu_context_gpus(context);
	if (gpus == 0)
		return CL_SUCCESS;
	c = calloc(1, sizeof(*c));
	if (!c)
		return CL_OUT_OF_HOST_MEMORY;
	c->gpus = gpus;
	c->bytes = bytes;
	if (take(gpus, bytes)) {
		*out = c;
		return CL_SUCCESS;
	}
	free(c);
	for (unsigned i = 0; i < VGPU_UUIDS; i++)
		fits |= (gpus >> i & 1) && bytes <= vgpu_memory_limit((int)i);
	return fits ? CL_MEM_OBJECT_ALLOCATION_FAILURE : CL_INVALID_BUFFER_SIZE;
}

static void CL_CALLBACK gone(cl_mem mem, void *charge)
{
	(void)mem;
	finish(charge);
}

/* The implementation made it larger or smaller than it was thought to be. */
static bool correct(struct charge *c, cl_mem mem)
{
	size_t bytes = 0;

	if (vgpu_next.clGetMemObjectInfo(mem, CL_MEM_SIZE, sizeof(bytes), &bytes, NULL) != CL_SUCCESS || bytes == 0)
		return true;
	if (bytes > c->bytes && !take(c->gpus, bytes - c->bytes))
		return false;
	if (bytes < c->bytes)
		give_back(c->gpus, c->bytes - bytes);
	c->bytes = bytes;
	return true;
}

/* After: the object has the charge from now on. */
static cl_mem end(struct charge *c, cl_mem mem, cl_int *error)
{
	if (!mem || !c) {
		finish(c);
		return mem;
	}
	if (correct(c, mem) && vgpu_next.clSetMemObjectDestructorCallback(mem, gone, c) == CL_SUCCESS)
		return mem;
	vgpu_next.clReleaseMemObject(mem);
	finish(c);
	if (error)
		*error = CL_MEM_OBJECT_ALLOCATION_FAILURE;
	return NULL;
}

static cl_mem refuse(cl_int r, cl_int *error)
{
	if (error)
		*error = r;
	return NULL;
}

static cl_mem CL_API_CALL hook_clCreateBuffer(cl_context context, cl_mem_flags flags, size_t size, void *host, cl_int *error)
{
	struct charge *c;
	cl_int r = begin(&c, context, size);

	return r == CL_SUCCESS ? end(c, vgpu_next.clCreateBuffer(context, flags, size, host, error), error) : refuse(r, error);
}

static cl_mem CL_API_CALL hook_clCreateBufferWithProperties(cl_context context, const cl_mem_properties *properties,
							    cl_mem_flags flags, size_t size, void *host, cl_int *error)
{
	struct charge *c;
	cl_int r = begin(&c, context, size);

	if (r != CL_SUCCESS)
		return refuse(r, error);
	return end(c, vgpu_next.clCreateBufferWithProperties(context, properties, flags, size, host, error), error);
}

static cl_mem CL_API_CALL hook_clCreatePipe(cl_context context, cl_mem_flags flags, cl_uint size, cl_uint most,
					    const cl_pipe_properties *properties, cl_int *error)
{
	struct charge *c;
	cl_int r = begin(&c, context, (uint64_t)size * most);

	return r == CL_SUCCESS ? end(c, vgpu_next.clCreatePipe(context, flags, size, most, properties, error), error) : refuse(r, error);
}

/* ---- images --------------------------------------------------------------------- */

static uint64_t channels(cl_channel_order order)
{
	switch (order) {
	case CL_RG:
	case CL_RA:
	case CL_RGx:
		return 2;
	case CL_RGB:
	case CL_RGBx:
	case CL_sRGB:
	case CL_sRGBx:
		return 3;
	case CL_RGBA:
	case CL_BGRA:
	case CL_ARGB:
	case CL_ABGR:
	case CL_sRGBA:
	case CL_sBGRA:
		return 4;
	default:
		return 1;
	}
}

static uint64_t pixel(const cl_image_format *f)
{
	if (!f)
		return 0;
	switch (f->image_channel_data_type) {
	case CL_UNORM_SHORT_565:
	case CL_UNORM_SHORT_555:
		return 2;
	case CL_UNORM_INT_101010:
	case CL_UNORM_INT_101010_2:
		return 4;
	case CL_SNORM_INT8:
	case CL_UNORM_INT8:
	case CL_SIGNED_INT8:
	case CL_UNSIGNED_INT8:
		return channels(f->image_channel_order);
	case CL_SNORM_INT16:
	case CL_UNORM_INT16:
	case CL_SIGNED_INT16:
	case CL_UNSIGNED_INT16:
	case CL_HALF_FLOAT:
		return 2 * channels(f->image_channel_order);
	default:
		return 4 * channels(f->image_channel_order);
	}
}

/* A product that can not be is of a size that nobody has: the implementation refuses
 * it, and so do we. */
static uint64_t product(uint64_t a, uint64_t b)
{
	uint64_t r;

	b = b ? b : 1;
	return __builtin_mul_overflow(a, b, &r) ? UINT64_MAX / 2 : r;
}

static uint64_t image_bytes(const cl_image_format *format, const cl_image_desc *d)
{
	uint64_t levels;

	if (!format || !d || d->mem_object)
		return 0; /* made of something that was charged */
	levels = d->num_mip_levels > 1 ? 2 : 1; /* a third more in two dimensions, less than double in any */
	return product(product(product(product(pixel(format), d->image_width), d->image_height),
			       d->image_type == CL_MEM_OBJECT_IMAGE3D ? d->image_depth : d->image_array_size),
		       levels);
}

/* An image has an error of its own for its size. */
static cl_int image_begin(struct charge **c, cl_context context, uint64_t bytes)
{
	cl_int r = begin(c, context, bytes);

	return r == CL_INVALID_BUFFER_SIZE ? CL_MEM_OBJECT_ALLOCATION_FAILURE : r;
}

static cl_mem CL_API_CALL hook_clCreateImage(cl_context context, cl_mem_flags flags, const cl_image_format *format,
					     const cl_image_desc *desc, void *host, cl_int *error)
{
	struct charge *c;
	cl_int r = image_begin(&c, context, image_bytes(format, desc));

	return r == CL_SUCCESS ? end(c, vgpu_next.clCreateImage(context, flags, format, desc, host, error), error) : refuse(r, error);
}

static cl_mem CL_API_CALL hook_clCreateImageWithProperties(cl_context context, const cl_mem_properties *properties,
							   cl_mem_flags flags, const cl_image_format *format,
							   const cl_image_desc *desc, void *host, cl_int *error)
{
	struct charge *c;
	cl_int r = image_begin(&c, context, image_bytes(format, desc));

	if (r != CL_SUCCESS)
		return refuse(r, error);
	return end(c, vgpu_next.clCreateImageWithProperties(context, properties, flags, format, desc, host, error), error);
}

static cl_mem CL_API_CALL hook_clCreateImage2D(cl_context context, cl_mem_flags flags, const cl_image_format *format, size_t width,
					       size_t height, size_t pitch, void *host, cl_int *error)
{
	struct charge *c;
	cl_int r = image_begin(&c, context, product(product(pixel(format), width), height));

	if (r != CL_SUCCESS)
		return refuse(r, error);
	return end(c, vgpu_next.clCreateImage2D(context, flags, format, width, height, pitch, host, error), error);
}

static cl_mem CL_API_CALL hook_clCreateImage3D(cl_context context, cl_mem_flags flags, const cl_image_format *format, size_t width,
					       size_t height, size_t depth, size_t row, size_t slice, void *host, cl_int *error)
{
	struct charge *c;
	cl_int r = image_begin(&c, context, product(product(product(pixel(format), width), height), depth));

	if (r != CL_SUCCESS)
		return refuse(r, error);
	return end(c, vgpu_next.clCreateImage3D(context, flags, format, width, height, depth, row, slice, host, error), error);
}

/* ---- shared virtual memory ------------------------------------------------------- */

static void *CL_API_CALL hook_clSVMAlloc(cl_context context, cl_svm_mem_flags flags, size_t size, cl_uint alignment)
{
	struct charge *c;
	void *pointer;

	if (begin(&c, context, size) != CL_SUCCESS)
		return NULL;
	pointer = vgpu_next.clSVMAlloc(context, flags, size, alignment);
	if (!pointer || !c) {
		finish(c);
		return pointer;
	}
	c->node.key = (uintptr_t)pointer;
	pthread_mutex_lock(&svm.lock);
	vgpu_hash_add(&svm.by_pointer, &c->node);
	pthread_mutex_unlock(&svm.lock);
	return pointer;
}

static struct charge *svm_take(void *pointer)
{
	struct vgpu_node *n;

	pthread_mutex_lock(&svm.lock);
	n = vgpu_hash_take(&svm.by_pointer, 0, (uintptr_t)pointer);
	pthread_mutex_unlock(&svm.lock);
	return (struct charge *)n;
}

static void CL_API_CALL hook_clSVMFree(cl_context context, void *pointer)
{
	/* Before it: the address may be given out again before the call returns. */
	struct charge *c = svm_take(pointer);

	vgpu_next.clSVMFree(context, pointer);
	finish(c);
}

void vgpu_svm_freed(cl_uint n, void *pointers[])
{
	for (cl_uint i = 0; i < n; i++)
		finish(svm_take(pointers[i]));
}

void vgpu_charge_hooks(void)
{
	VGPU_HOOK(clCreateBuffer);
	VGPU_HOOK(clCreateBufferWithProperties);
	VGPU_HOOK(clCreatePipe);
	VGPU_HOOK(clCreateImage);
	VGPU_HOOK(clCreateImageWithProperties);
	VGPU_HOOK(clCreateImage2D);
	VGPU_HOOK(clCreateImage3D);
	VGPU_HOOK(clSVMAlloc);
	VGPU_HOOK(clSVMFree);
}
