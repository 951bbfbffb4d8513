/* SPDX-License-Identifier: Apache-2.0 */
/* The functions that enqueue. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "opencl.h"

#define PARAMETERS(...) (cl_command_queue queue, __VA_ARGS__, cl_uint n, const cl_event *wait, cl_event *event)
#define ARGUMENTS(...)  (queue, __VA_ARGS__, c.n, c.wait, c.event)

/* A function that enqueues and does not block; parameters and arguments between the
 * queue and the wait list. */
#define ENQUEUES(order, name, parameters, arguments)                                             \
	static cl_int CL_API_CALL hook_##name parameters                                         \
	{                                                                                        \
		struct vgpu_command c;                                                           \
		cl_int r = vgpu_command_begin(&c, order, queue, n, wait, event, CL_FALSE);       \
                                                                                                 \
		return r == CL_SUCCESS ? vgpu_command_end(&c, vgpu_next.name arguments) : r;     \
	}

/* One that may block: of ours it never does inside of the gate. */
#define MAY_BLOCK(name, parameters, arguments)                                                   \
	static cl_int CL_API_CALL hook_##name parameters                                         \
	{                                                                                        \
		struct vgpu_command c;                                                           \
		cl_int r = vgpu_command_begin(&c, VGPU_WORK, queue, n, wait, event, blocking);   \
                                                                                                 \
		if (r != CL_SUCCESS)                                                             \
			return r;                                                                \
		blocking = c.queue ? CL_FALSE : blocking;                                        \
		return vgpu_command_end(&c, vgpu_next.name arguments);                           \
	}

MAY_BLOCK(clEnqueueReadBuffer, PARAMETERS(cl_mem buffer, cl_bool blocking, size_t offset, size_t size, void *ptr),
	  ARGUMENTS(buffer, blocking, offset, size, ptr))
MAY_BLOCK(clEnqueueWriteBuffer, PARAMETERS(cl_mem buffer, cl_bool blocking, size_t offset, size_t size, const void *ptr),
	  ARGUMENTS(buffer, blocking, offset, size, ptr))
MAY_BLOCK(clEnqueueReadBufferRect,
	  PARAMETERS(cl_mem buffer, cl_bool blocking, const size_t *origin, const size_t *host_origin, const size_t *region,
		     size_t row, size_t slice, size_t host_row, size_t host_slice, void *ptr),
	  ARGUMENTS(buffer, blocking, origin, host_origin, region, row, slice, host_row, host_slice, ptr))
MAY_BLOCK(clEnqueueWriteBufferRect,
	  PARAMETERS(cl_mem buffer, cl_bool blocking, const size_t *origin, const size_t *host_origin, const size_t *region,
		     size_t row, size_t slice, size_t host_row, size_t host_slice, const void *ptr),
	  ARGUMENTS(buffer, blocking, origin, host_origin, region, row, slice, host_row, host_slice, ptr))
MAY_BLOCK(clEnqueueReadImage,
	  PARAMETERS(cl_mem image, cl_bool blocking, const size_t *origin, const size_t *region, size_t row, size_t slice, void *ptr),
	  ARGUMENTS(image, blocking, origin, region, row, slice, ptr))
MAY_BLOCK(clEnqueueWriteImage,
	  PARAMETERS(cl_mem image, cl_bool blocking, const size_t *origin, const size_t *region, size_t row, size_t slice,
		     const void *ptr),
	  ARGUMENTS(image, blocking, origin, region, row, slice, ptr))

ENQUEUES(VGPU_WORK, clEnqueueCopyBuffer, PARAMETERS(cl_mem from, cl_mem to, size_t from_offset, size_t to_offset, size_t size),
	 ARGUMENTS(from, to, from_offset, to_offset, size))
ENQUEUES(VGPU_WORK, clEnqueueCopyBufferRect,
	 PARAMETERS(cl_mem from, cl_mem to, const size_t *from_origin, const size_t *to_origin, const size_t *region, size_t from_row,
		    size_t from_slice, size_t to_row, size_t to_slice),
	 ARGUMENTS(from, to, from_origin, to_origin, region, from_row, from_slice, to_row, to_slice))
ENQUEUES(VGPU_WORK, clEnqueueCopyImage,
	 PARAMETERS(cl_mem from, cl_mem to, const size_t *from_origin, const size_t *to_origin, const size_t *region),
	 ARGUMENTS(from, to, from_origin, to_origin, region))
ENQUEUES(VGPU_WORK, clEnqueueCopyImageToBuffer,
	 PARAMETERS(cl_mem from, cl_mem to, const size_t *origin, const size_t *region, size_t offset),
	 ARGUMENTS(from, to, origin, region, offset))
ENQUEUES(VGPU_WORK, clEnqueueCopyBufferToImage,
	 PARAMETERS(cl_mem from, cl_mem to, size_t offset, const size_t *origin, const size_t *region),
	 ARGUMENTS(from, to, offset, origin, region))
ENQUEUES(VGPU_WORK, clEnqueueFillBuffer,
	 PARAMETERS(cl_mem buffer, const void *pattern, size_t pattern_size, size_t offset, size_t size),
	 ARGUMENTS(buffer, pattern, pattern_size, offset, size))
ENQUEUES(VGPU_WORK, clEnqueueFillImage, PARAMETERS(cl_mem image, const void *color, const size_t *origin, const size_t *region),
	 ARGUMENTS(image, color, origin, region))
ENQUEUES(VGPU_WORK, clEnqueueMigrateMemObjects, PARAMETERS(cl_uint count, const cl_mem *objects, cl_mem_migration_flags flags),
	 ARGUMENTS(count, objects, flags))
ENQUEUES(VGPU_WORK, clEnqueueUnmapMemObject, PARAMETERS(cl_mem object, void *mapped), ARGUMENTS(object, mapped))
ENQUEUES(VGPU_WORK, clEnqueueNDRangeKernel,
	 PARAMETERS(cl_kernel kernel, cl_uint dimensions, const size_t *offset, const size_t *global, const size_t *local),
	 ARGUMENTS(kernel, dimensions, offset, global, local))
ENQUEUES(VGPU_WORK, clEnqueueTask, PARAMETERS(cl_kernel kernel), ARGUMENTS(kernel))
ENQUEUES(VGPU_WORK, clEnqueueSVMMemFill, PARAMETERS(void *to, const void *pattern, size_t pattern_size, size_t size),
	 ARGUMENTS(to, pattern, pattern_size, size))
ENQUEUES(VGPU_WORK, clEnqueueSVMUnmap, PARAMETERS(void *pointer), ARGUMENTS(pointer))
ENQUEUES(VGPU_WORK, clEnqueueSVMMigrateMem,
	 PARAMETERS(cl_uint count, const void **pointers, const size_t *sizes, cl_mem_migration_flags flags),
	 ARGUMENTS(count, pointers, sizes, flags))
ENQUEUES(VGPU_MARKER, clEnqueueMarkerWithWaitList, (cl_command_queue queue, cl_uint n, const cl_event *wait, cl_event *event),
	 (queue, c.n, c.wait, c.event))
ENQUEUES(VGPU_BARRIER, clEnqueueBarrierWithWaitList, (cl_command_queue queue, cl_uint n, const cl_event *wait, cl_event *event),
	 (queue, c.n, c.wait, c.event))
/* What another API has of ours, or gets back: order, not work. */
ENQUEUES(VGPU_MARKER, clEnqueueAcquireGLObjects, PARAMETERS(cl_uint count, const cl_mem *objects), ARGUMENTS(count, objects))
ENQUEUES(VGPU_MARKER, clEnqueueReleaseGLObjects, PARAMETERS(cl_uint count, const cl_mem *objects), ARGUMENTS(count, objects))
ENQUEUES(VGPU_MARKER, clEnqueueAcquireEGLObjectsKHR, PARAMETERS(cl_uint count, const cl_mem *objects), ARGUMENTS(count, objects))
ENQUEUES(VGPU_MARKER, clEnqueueReleaseEGLObjectsKHR, PARAMETERS(cl_uint count, const cl_mem *objects), ARGUMENTS(count, objects))

/* The queue comes first in all but these two. */
static cl_int CL_API_CALL hook_clEnqueueSVMMemcpy(cl_command_queue queue, cl_bool blocking, void *to, const void *from, size_t size,
						  cl_uint n, const cl_event *wait, cl_event *event)
{
	struct vgpu_command c;
	cl_int r = vgpu_command_begin(&c, VGPU_WORK, queue, n, wait, event, blocking);

	if (r != CL_SUCCESS)
		return r;
	return vgpu_command_end(&c, vgpu_next.clEnqueueSVMMemcpy(queue, c.queue ? CL_FALSE : blocking, to, from, size, c.n, c.wait, c.event));
}

static cl_int CL_API_CALL hook_clEnqueueSVMMap(cl_command_queue queue, cl_bool blocking, cl_map_flags flags, void *pointer,
					       size_t size, cl_uint n, const cl_event *wait, cl_event *event)
{
	struct vgpu_command c;
	cl_int r = vgpu_command_begin(&c, VGPU_WORK, queue, n, wait, event, blocking);

	if (r != CL_SUCCESS)
		return r;
	return vgpu_command_end(&c, vgpu_next.clEnqueueSVMMap(queue, c.queue ? CL_FALSE : blocking, flags, pointer, size, c.n, c.wait, c.event));
}

/* ---- maps: the pointer is returned, the error goes to a parameter ------------- */

static void *mapped(struct vgpu_command *c, void *pointer, cl_int r, cl_int *error)
{
	r = vgpu_command_end(c, r);
	if (error)
		*error = r;
	return r == CL_SUCCESS ? pointer : NULL;
}

static void *CL_API_CALL hook_clEnqueueMapBuffer(cl_command_queue queue, cl_mem buffer, cl_bool blocking, cl_map_flags flags,
						 size_t offset, size_t size, cl_uint n, const cl_event *wait, cl_event *event,
						 cl_int *error)
{
	struct vgpu_command c;
	cl_int r = vgpu_command_begin(&c, VGPU_WORK, queue, n, wait, event, blocking);
	void *pointer = NULL;

	if (r != CL_SUCCESS) {
		if (error)
			*error = r;
		return NULL;
	}
	pointer = vgpu_next.clEnqueueMapBuffer(queue, buffer, c.queue ? CL_FALSE : blocking, flags, offset, size, c.n, c.wait, c.event, &r);
	return mapped(&c, pointer, r, error);
}

static void *CL_API_CALL hook_clEnqueueMapImage(cl_command_queue queue, cl_mem image, cl_bool blocking, cl_map_flags flags,
						const size_t *origin, const size_t *region, size_t *row, size_t *slice, cl_uint n,
						const cl_event *wait, cl_event *event, cl_int *error)
{
	struct vgpu_command c;
	cl_int r = vgpu_command_begin(&c, VGPU_WORK, queue, n, wait, event, blocking);
	void *pointer = NULL;

	if (r != CL_SUCCESS) {
		if (error)
			*error = r;
		return NULL;
	}
	pointer = vgpu_next.clEnqueueMapImage(queue, image, c.queue ? CL_FALSE : blocking, flags, origin, region, row, slice, c.n, c.wait,
					      c.event, &r);
	return mapped(&c, pointer, r, error);
}

/* ---- functions of the program that run in the queue --------------------------- */

static cl_int CL_API_CALL hook_clEnqueueNativeKernel(cl_command_queue queue, void(CL_CALLBACK *function)(void *), void *args,
						     size_t size, cl_uint count, const cl_mem *objects, const void **places,
						     cl_uint n, const cl_event *wait, cl_event *event)
{
	const void **moved = NULL;
	struct vgpu_native *native = NULL;
	struct vgpu_command c;
	cl_int r = vgpu_command_begin(&c, VGPU_WORK, queue, n, wait, event, CL_FALSE);

	if (r != CL_SUCCESS)
		return r;
	/* What is wrong with the arguments the implementation says. */
	if (!c.queue || !function || (!args && size) || (args && !size) || (count && (!objects || !places)))
		return vgpu_command_end(&c, vgpu_next.clEnqueueNativeKernel(queue, function, args, size, count, objects, places, c.n, c.wait, c.event));
	/* It copies what it is given, and writes pointers at the places in its copy. */
	native = malloc(sizeof(*native) + size);
	moved = calloc(count + 1, sizeof(*moved));
	if (!native || !moved) {
		free(native);
		free(moved);
		return vgpu_command_end(&c, CL_OUT_OF_HOST_MEMORY);
	}
	native->function = function;
	if (size)
		memcpy(native->args, args, size);
	for (cl_uint i = 0; i < count; i++)
		moved[i] = native->args + ((const char *)places[i] - (const char *)args);
	r = vgpu_next.clEnqueueNativeKernel(queue, vgpu_native_run, native, sizeof(*native) + size, count, objects,
					    count ? moved : NULL, c.n, c.wait, c.event);
	free(native);
	free(moved);
	return vgpu_command_end(&c, r);
}

static cl_int CL_API_CALL hook_clEnqueueSVMFree(cl_command_queue queue, cl_uint count, void *pointers[],
						void(CL_CALLBACK *function)(cl_command_queue, cl_uint, void **, void *), void *data,
						cl_uint n, const cl_event *wait, cl_event *event)
{
	struct vgpu_svm_free *f = NULL;
	struct vgpu_command c;
	cl_int r = vgpu_command_begin(&c, VGPU_WORK, queue, n, wait, event, CL_FALSE);

	if (r != CL_SUCCESS)
		return r;
	if (c.queue && function) {
		f = malloc(sizeof(*f));
		if (!f)
			return vgpu_command_end(&c, CL_OUT_OF_HOST_MEMORY);
		*f = (struct vgpu_svm_free){ function, data };
		function = vgpu_svm_free_run;
		data = f;
	}
	r = vgpu_next.clEnqueueSVMFree(queue, count, pointers, function, data, c.n, c.wait, c.event);
	if (r != CL_SUCCESS)
		free(f);
	else if (c.queue && !function)
		vgpu_svm_freed(count, pointers);
	return vgpu_command_end(&c, r);
}

/* ---- order, as OpenCL 1.1 said it: without a list, or without an event --------- */

static cl_int CL_API_CALL hook_clEnqueueMarker(cl_command_queue queue, cl_event *event)
{
	struct vgpu_command c;
	cl_int r = vgpu_command_begin(&c, VGPU_MARKER, queue, 0, NULL, event, CL_FALSE);

	return r == CL_SUCCESS ? vgpu_command_end(&c, vgpu_next.clEnqueueMarker(queue, event)) : r;
}

static cl_int CL_API_CALL hook_clEnqueueWaitForEvents(cl_command_queue queue, cl_uint n, const cl_event *wait)
{
	struct vgpu_command c;
	cl_int r = vgpu_command_begin(&c, VGPU_BARRIER, queue, n, wait, NULL, CL_FALSE);

	return r == CL_SUCCESS ? vgpu_command_end(&c, vgpu_next.clEnqueueWaitForEvents(queue, n, wait)) : r;
}

static cl_int CL_API_CALL hook_clEnqueueBarrier(cl_command_queue queue)
{
	struct vgpu_command c;
	cl_int r = vgpu_command_begin(&c, VGPU_BARRIER, queue, 0, NULL, NULL, CL_FALSE);

	return r == CL_SUCCESS ? vgpu_command_end(&c, vgpu_next.clEnqueueBarrier(queue)) : r;
}

void vgpu_work_hooks(void)
{
	VGPU_HOOK(clEnqueueReadBuffer);
	VGPU_HOOK(clEnqueueWriteBuffer);
	VGPU_HOOK(clEnqueueReadBufferRect);
	VGPU_HOOK(clEnqueueWriteBufferRect);
	VGPU_HOOK(clEnqueueReadImage);
	VGPU_HOOK(clEnqueueWriteImage);
	VGPU_HOOK(clEnqueueCopyBuffer);
	VGPU_HOOK(clEnqueueCopyBufferRect);
	VGPU_HOOK(clEnqueueCopyImage);
	VGPU_HOOK(clEnqueueCopyImageToBuffer);
	VGPU_HOOK(clEnqueueCopyBufferToImage);
	VGPU_HOOK(clEnqueueFillBuffer);
	VGPU_HOOK(clEnqueueFillImage);
	VGPU_HOOK(clEnqueueMigrateMemObjects);
	VGPU_HOOK(clEnqueueMapBuffer);
	VGPU_HOOK(clEnqueueMapImage);
	VGPU_HOOK(clEnqueueUnmapMemObject);
	VGPU_HOOK(clEnqueueNDRangeKernel);
	VGPU_HOOK(clEnqueueTask);
	VGPU_HOOK(clEnqueueNativeKernel);
	VGPU_HOOK(clEnqueueSVMFree);
	VGPU_HOOK(clEnqueueSVMMemcpy);
	VGPU_HOOK(clEnqueueSVMMemFill);
	VGPU_HOOK(clEnqueueSVMMap);
	VGPU_HOOK(clEnqueueSVMUnmap);
	VGPU_HOOK(clEnqueueSVMMigrateMem);
	VGPU_HOOK(clEnqueueMarker);
	VGPU_HOOK(clEnqueueWaitForEvents);
	VGPU_HOOK(clEnqueueBarrier);
	VGPU_HOOK(clEnqueueMarkerWithWaitList);
	VGPU_HOOK(clEnqueueBarrierWithWaitList);
	VGPU_HOOK(clEnqueueAcquireGLObjects);
	VGPU_HOOK(clEnqueueReleaseGLObjects);
	VGPU_HOOK(clEnqueueAcquireEGLObjectsKHR);
	VGPU_HOOK(clEnqueueReleaseEGLObjectsKHR);
}
