/* SPDX-License-Identifier: Apache-2.0 */
/* A driver whose calls cost next to nothing: what is left is the library's own. */
#define VGPU_CUDA_ABI_EXPORTS
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

CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
			unsigned int bz, unsigned int shared, CUstream s, void **params, void **extra)
{
	(void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)s, (void)params, (void)extra;
	return CUDA_SUCCESS;
}
