/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launches as before CUDA 4: the function itself keeps the shape of its blocks
 * and its parameters, call by call, until it is launched.
 */
#include <stdlib.h>
#include <string.h>

#include "module.h"

struct prepared {
	unsigned block[3], shared, size;
	unsigned char params[PREPARED_BYTES];
};

/* What a function keeps, made when it is first asked for. */
static CUresult enter_prepared(CUfunction h, struct prepared **out)
{
	struct function *f;
	CUresult r = enter_function(h, &f);

	if (r)
		return r;
	if (!f->prepared)
		f->prepared = calloc(1, sizeof(struct prepared));
	*out = f->prepared;
	return *out ? CUDA_SUCCESS : leave(CUDA_ERROR_OUT_OF_MEMORY);
}

EXPORT CUresult cuFuncSetBlockShape(CUfunction h, int x, int y, int z)
{
	struct prepared *p;
	CUresult r = enter_prepared(h, &p);

	if (r)
		return r;
	if (x < 1 || y < 1 || z < 1)
		return leave(CUDA_ERROR_INVALID_VALUE);
	p->block[0] = (unsigned)x;
	p->block[1] = (unsigned)y;
	p->block[2] = (unsigned)z;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuFuncSetSharedSize(CUfunction h, unsigned int bytes)
{
	struct prepared *p;
	CUresult r = enter_prepared(h, &p);

	if (r)
		return r;
	p->shared = bytes;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuParamSetSize(CUfunction h, unsigned int size)
{
	struct prepared *p;
	CUresult r = enter_prepared(h, &p);

	if (r)
		return r;
	if (size > PREPARED_BYTES)
		return leave(CUDA_ERROR_INVALID_VALUE);
	p->size = size;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuParamSetv(CUfunction h, int offset, void *from, unsigned int size)
{
	struct prepared *p;
	CUresult r = enter_prepared(h, &p);

	if (r)
		return r;
	if (!from || offset < 0 || offset > PREPARED_BYTES || size > PREPARED_BYTES - (unsigned)offset)
		return leave(CUDA_ERROR_INVALID_VALUE);
	memcpy(p->params + offset, from, size);
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuParamSeti(CUfunction h, int offset, unsigned int value)
{
	return cuParamSetv(h, offset, &value, sizeof(value));
}

EXPORT CUresult cuParamSetf(CUfunction h, int offset, float value)
{
	return cuParamSetv(h, offset, &value, sizeof(value));
}

/* A copy of what the function keeps: the launch takes the lock itself. */
static CUresult launch_prepared(CUfunction h, int width, int height, CUstream stream, const char *call)
{
	struct prepared *kept;
	CUresult r = enter_prepared(h, &kept);

	if (r)
		return r;
	struct prepared p = *kept;
	leave(CUDA_SUCCESS);
	if (width < 1 || height < 1)
		return CUDA_ERROR_INVALID_VALUE;
	size_t size = p.size;
	return launch_kernel(&(CUDA_KERNEL_NODE_PARAMS){
			.func = h, .gridDimX = (unsigned)width, .gridDimY = (unsigned)height, .gridDimZ = 1,
			.blockDimX = p.block[0], .blockDimY = p.block[1], .blockDimZ = p.block[2], .sharedMemBytes = p.shared,
			.extra = LAUNCH_BUFFER(p.params, &size) }, stream, call, false);
}

EXPORT CUresult cuLaunch(CUfunction h)
{
	return launch_prepared(h, 1, 1, NULL, "cuLaunch");
}

EXPORT CUresult cuLaunchGrid(CUfunction h, int width, int height)
{
	return launch_prepared(h, width, height, NULL, "cuLaunchGrid");
}

EXPORT CUresult cuLaunchGridAsync(CUfunction h, int width, int height, CUstream stream)
{
	return launch_prepared(h, width, height, stream, "cuLaunchGridAsync");
}
