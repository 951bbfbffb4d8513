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

#endif
