/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIMGPU_COPY_H
#define SIMGPU_COPY_H

#include "sim.h"

struct copy_mode {
	const char *name;
	bool async, per_thread;
	bool to_device, from_device; /* that side must be memory that the driver knows */
};

CUresult copy_call(const struct copy *c, CUstream h, const struct copy_mode *m);
/* Whether both sides are memory, as far as it is ours to know. width and height are not 0. */
bool copy_ok_locked(const struct copy *c);
/*
 * Submits, and waits where the call has to. Lets the mutex go meanwhile. source_now:
 * pageable memory is read during the call, however much it is.
 */
CUresult copy_submit_locked(struct context *ctx, struct stream *s, struct copy c, const struct copy_mode *m, bool source_now);
/* Bytes from the first to the last one of a box, if there are so many addresses. */
bool copy_extent(size_t planes, size_t slice, size_t rows, size_t pitch, size_t width, size_t *n);
CUresult set_call(const struct set *s, CUstream h, const struct copy_mode *m);

/*
 * copy3d.c: the copy that a description of a box means. A copy of width 0:
 * nothing is to be done.
 */
CUresult copy_of_box_locked(const CUDA_MEMCPY3D *p, struct copy *out);

#endif
