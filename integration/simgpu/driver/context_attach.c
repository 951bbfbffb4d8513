/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts with a count of uses, as before CUDA 4: pycuda still ends them so. */
#include "sim.h"

EXPORT CUresult cuCtxAttach(CUcontext *out, unsigned int flags)
{
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	if (!out || flags)
		return leave(CUDA_ERROR_INVALID_VALUE);
	ctx->attached++;
	*out = (CUcontext)ctx;
	return leave(CUDA_SUCCESS);
}

/* Only of the context that is current; the last use destroys it. */
EXPORT CUresult cuCtxDetach(CUcontext h)
{
	struct context *ctx;
	CUresult r = enter();

	if (r)
		return r;
	lock();
	ctx = context_get_locked(h);
	if (!ctx || self.depth == 0 || self.stack[self.depth - 1] != ctx)
		return leave(CUDA_ERROR_INVALID_CONTEXT);
	if (ctx->attached == 0) {
		leave(CUDA_SUCCESS);
		return cuCtxDestroy_v2(h);
	}
	ctx->attached--;
	return leave(CUDA_SUCCESS);
}
