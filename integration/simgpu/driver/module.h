/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIMGPU_MODULE_H
#define SIMGPU_MODULE_H

#include "sim.h"

void jit_report(const char *why, unsigned n, CUjit_option *options, void **values);
/* Parses the image and finds a body for each entry. */
CUresult module_check(const void *image, struct ptx *out, char *why, size_t size);
char *read_image(const char *path);
/* The function of a CUkernel in a context, whose module is loaded when needed. */
CUresult kernel_function_locked(struct context *ctx, const void *h, struct function **out);
/* Takes the lock; the function must be of the current context. */
CUresult enter_function(CUfunction h, struct function **f);

#define LAUNCH_PARAM_END ((void *)0)
#define LAUNCH_PARAM_BUFFER_POINTER ((void *)1)
#define LAUNCH_PARAM_BUFFER_SIZE ((void *)2)
#define LAUNCH_BUFFER(buffer, size)                                                                                    \
	((void *[]){ LAUNCH_PARAM_BUFFER_POINTER, buffer, LAUNCH_PARAM_BUFFER_SIZE, size, LAUNCH_PARAM_END })
/* Submits a kernel, as the call of that name. */
CUresult launch_kernel(const CUDA_KERNEL_NODE_PARAMS *p, CUstream h, const char *call, bool per_thread);

/* The most that a function keeps of parameters for a launch as before CUDA 4. */
#define PREPARED_BYTES 4096

#endif
