/* SPDX-License-Identifier: Apache-2.0 */
/* Functions of the program that an implementation calls: in them nothing of ours
 * waits (late.c). An implementation may do so in any thread, also one that is inside
 * of a call of ours. */
#define _GNU_SOURCE
#include <stdlib.h>

#include "opencl.h"

static unsigned begin(void)
{
	unsigned nested = vgpu_cl_thread.nested;

	vgpu_cl_thread.nested = 0;
	vgpu_cl_thread.callback++;
	return nested;
}

static void end(unsigned nested)
{
	vgpu_cl_thread.callback--;
	vgpu_cl_thread.nested = nested;
}

void CL_CALLBACK vgpu_native_run(void *args)
{
	struct vgpu_native *n = args;
	unsigned nested = begin();

	n->function(n->args);
	end(nested);
}

void CL_CALLBACK vgpu_svm_free_run(cl_command_queue queue, cl_uint n, void **pointers, void *data)
{
	struct vgpu_svm_free f = *(struct vgpu_svm_free *)data;
	unsigned nested = begin();

	free(data);
	f.function(queue, n, pointers, f.data);
	end(nested);
}

/* A wrapper is allocated for each, and freed by the one call of it; it goes to waste
 * if that never comes, as for an event that is released before it is over. */
#define WRAPPER(object, type, parameters, arguments)                                              \
	struct object##_callback {                                                               \
		void(CL_CALLBACK *function) type;                                                \
		void *data;                                                                      \
	};                                                                                       \
	static void CL_CALLBACK object##_run parameters                                          \
	{                                                                                        \
		struct object##_callback c = *(struct object##_callback *)data;                  \
		unsigned nested = begin();                                                       \
                                                                                                 \
		free(data);                                                                      \
		c.function arguments;                                                            \
		end(nested);                                                                     \
	}                                                                                        \
	static struct object##_callback *object##_wrap(void(CL_CALLBACK *function) type, void *data) \
	{                                                                                        \
		struct object##_callback *c = malloc(sizeof(*c));                                \
                                                                                                 \
		if (c)                                                                           \
			*c = (struct object##_callback){ function, data };                       \
		return c;                                                                        \
	}

WRAPPER(event, (cl_event, cl_int, void *), (cl_event event, cl_int status, void *data), (event, status, c.data))
WRAPPER(mem, (cl_mem, void *), (cl_mem mem, void *data), (mem, c.data))
WRAPPER(context, (cl_context, void *), (cl_context context, void *data), (context, c.data))
WRAPPER(program, (cl_program, void *), (cl_program program, void *data), (program, c.data))

static cl_int kept(cl_int r, void *wrapper)
{
	if (r != CL_SUCCESS)
		free(wrapper);
	return r;
}

static cl_int CL_API_CALL hook_clSetEventCallback(cl_event event, cl_int status, void(CL_CALLBACK *function)(cl_event, cl_int, void *),
						  void *data)
{
	struct event_callback *c;

	if (!function)
		return vgpu_next.clSetEventCallback(event, status, function, data);
	c = event_wrap(function, data);
	return c ? kept(vgpu_next.clSetEventCallback(event, status, event_run, c), c) : CL_OUT_OF_HOST_MEMORY;
}

static cl_int CL_API_CALL hook_clSetMemObjectDestructorCallback(cl_mem mem, void(CL_CALLBACK *function)(cl_mem, void *), void *data)
{
	struct mem_callback *c;

	if (!function)
		return vgpu_next.clSetMemObjectDestructorCallback(mem, function, data);
	c = mem_wrap(function, data);
	return c ? kept(vgpu_next.clSetMemObjectDestructorCallback(mem, mem_run, c), c) : CL_OUT_OF_HOST_MEMORY;
}

static cl_int CL_API_CALL hook_clSetContextDestructorCallback(cl_context context, void(CL_CALLBACK *function)(cl_context, void *),
							      void *data)
{
	struct context_callback *c;

	if (!function)
		return vgpu_next.clSetContextDestructorCallback(context, function, data);
	c = context_wrap(function, data);
	return c ? kept(vgpu_next.clSetContextDestructorCallback(context, context_run, c), c) : CL_OUT_OF_HOST_MEMORY;
}

static cl_int CL_API_CALL hook_clSetProgramReleaseCallback(cl_program program, void(CL_CALLBACK *function)(cl_program, void *), void *data)
{
	struct program_callback *c;

	if (!function)
		return vgpu_next.clSetProgramReleaseCallback(program, function, data);
	c = program_wrap(function, data);
	return c ? kept(vgpu_next.clSetProgramReleaseCallback(program, program_run, c), c) : CL_OUT_OF_HOST_MEMORY;
}

/* ---- compilers: whether the function is called when they fail at once, differs:
 * the wrapper of a call that failed is kept ------------------------------------- */

static void program_changed(cl_program program)
{
	cl_context context;
	uint32_t gpus;

	if (!program || !vgpu_managed() ||
	    vgpu_next.clGetProgramInfo(program, CL_PROGRAM_CONTEXT, sizeof(context), &context, NULL) != CL_SUCCESS)
		return;
	gpus = vgpu_context_gpus(context);
	for (unsigned i = 0; i < VGPU_UUIDS; i++)
		if (gpus >> i & 1)
			vgpu_gate_memory_changed(i);
}

static cl_int CL_API_CALL hook_clBuildProgram(cl_program program, cl_uint n, const cl_device_id *list, const char *options,
					      void(CL_CALLBACK *function)(cl_program, void *), void *data)
{
	struct program_callback *c = function ? program_wrap(function, data) : NULL;
	cl_int r;

	if (function && !c)
		return CL_OUT_OF_HOST_MEMORY;
	r = vgpu_next.clBuildProgram(program, n, list, options, c ? program_run : NULL, c);
	program_changed(program);
	return r;
}

static cl_int CL_API_CALL hook_clCompileProgram(cl_program program, cl_uint n, const cl_device_id *list, const char *options,
						cl_uint headers, const cl_program *header, const char **names,
						void(CL_CALLBACK *function)(cl_program, void *), void *data)
{
	struct program_callback *c = function ? program_wrap(function, data) : NULL;

	if (function && !c)
		return CL_OUT_OF_HOST_MEMORY;
	return vgpu_next.clCompileProgram(program, n, list, options, headers, header, names, c ? program_run : NULL, c);
}

static cl_program CL_API_CALL hook_clLinkProgram(cl_context context, cl_uint n, const cl_device_id *list, const char *options,
						 cl_uint inputs, const cl_program *input,
						 void(CL_CALLBACK *function)(cl_program, void *), void *data, cl_int *error)
{
	struct program_callback *c = function ? program_wrap(function, data) : NULL;
	cl_program program;

	if (function && !c) {
		if (error)
			*error = CL_OUT_OF_HOST_MEMORY;
		return NULL;
	}
	program = vgpu_next.clLinkProgram(context, n, list, options, inputs, input, c ? program_run : NULL, c, error);
	program_changed(program);
	return program;
}

void vgpu_callback_hooks(void)
{
	VGPU_HOOK(clSetEventCallback);
	VGPU_HOOK(clSetMemObjectDestructorCallback);
	VGPU_HOOK(clSetContextDestructorCallback);
	VGPU_HOOK(clSetProgramReleaseCallback);
	VGPU_HOOK(clBuildProgram);
	VGPU_HOOK(clCompileProgram);
	VGPU_HOOK(clLinkProgram);
}
