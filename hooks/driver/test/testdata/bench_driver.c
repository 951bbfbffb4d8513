/* SPDX-License-Identifier: Apache-2.0 */
/* A driver whose calls cost next to nothing, but launches of a larger grid: what is
 * left is the library's own. */
#define _GNU_SOURCE
#define VGPU_CUDA_ABI_EXPORTS
#include <stdint.h>
#include <time.h>

#include "../../cuda_abi.h"

static _Thread_local CUcontext current;
static char context, stream, event;

CUresult cuInit(unsigned int flags)
{
	(void)flags;
	return CUDA_SUCCESS;
}

CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev)
{
	(void)flags, (void)dev;
	*ctx = current = (CUcontext)&context;
	return CUDA_SUCCESS;
}

CUresult cuCtxGetCurrent(CUcontext *ctx)
{
	*ctx = current;
	return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *s, unsigned int flags)
{
	(void)flags;
	*s = (CUstream)&stream;
	return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream s)
{
	(void)s;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream s, CUcontext *ctx)
{
	(void)s;
	return cuCtxGetCurrent(ctx);
}

CUresult cuEventCreate(CUevent *e, unsigned int flags)
{
	(void)flags;
	*e = (CUevent)&event;
	return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent e, CUstream s)
{
	(void)e, (void)s;
	return CUDA_SUCCESS;
}

CUresult cuCtxRecordEvent(CUcontext ctx, CUevent e)
{
	(void)ctx, (void)e;
	return CUDA_SUCCESS;
}

/* The GPU is always ready, and its clock stands still. */
CUresult cuEventQuery(CUevent e)
{
	(void)e;
	return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *ms, CUevent from, CUevent to)
{
	(void)from, (void)to;
	*ms = 0;
	return CUDA_SUCCESS;
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* As long as a real driver's takes: one microsecond for each block but the first. */
CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
			unsigned int bz, unsigned int shared, CUstream s, void **params, void **extra)
{
	if (gx > 1)
		for (uint64_t until = now_ns() + (gx - 1) * 1000u; now_ns() < until;)
			;
	(void)f, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)s, (void)params, (void)extra;
	return CUDA_SUCCESS;
}
