/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIMGPU_ARRAY_H
#define SIMGPU_ARRAY_H

#include "sim.h"

#define ARRAY_ALIGN 512u /* of what arrays take */

struct mipmap;

/* Rows without gaps, at an address that the program never sees. */
struct array {
	struct handle h;
	struct context *ctx;
	uint64_t at;
	size_t size, pitch;        /* bytes; of a row */
	size_t width, height, depth; /* elements, at least 1 */
	uint32_t element;          /* bytes */
	CUDA_ARRAY3D_DESCRIPTOR desc; /* as given */
	struct mipmap *level_of;   /* it goes with the mipmapped array; or NULL */
};

/* Bytes of an element; 0: a format that is not simulated or not one at all. */
uint32_t array_element(CUarray_format format, unsigned channels);
struct array *array_get_locked(CUarray h);
CUresult array_check(const CUDA_ARRAY3D_DESCRIPTOR *d);
CUresult array_new_locked(struct context *ctx, const CUDA_ARRAY3D_DESCRIPTOR *d, struct array **out);
void array_free_locked(struct array *a);
/* Enters for a call that makes or frees memory. */
CUresult array_enter(struct context **ctx);

#endif
