/* SPDX-License-Identifier: Apache-2.0 */
/* Managed memory of one stream: here any stream may use it at any time. */
#include "memory.h"

static CUresult attach(CUstream h, CUdeviceptr p, size_t n, unsigned flags, bool per_thread)
{
	struct context *ctx;
	struct stream *s;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	r = stream_get_locked(ctx, h, per_thread, &s);
	if (r)
		return leave(r);
	const struct allocation *a = memory_find_locked(p);
	/* The whole of it, which 0 says too. */
	if (!a || a->kind != MEMORY_MANAGED || a->base != p || (n && n != a->size) ||
	    (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST && flags != CU_MEM_ATTACH_SINGLE) ||
	    (flags == CU_MEM_ATTACH_SINGLE && (s->legacy || s->per_thread)))
		return leave(CUDA_ERROR_INVALID_VALUE);
	r = capture_forbid_locked(s);
	if (r)
		return leave(r);
	return leave(submit_locked(&(struct submit){
		.name = "cuStreamAttachMemAsync", .class = SIM_ORDER, .stream = s, .step = { .kind = STEP_NOTHING } }, NULL));
}

EXPORT CUresult cuStreamAttachMemAsync(CUstream h, CUdeviceptr p, size_t n, unsigned int flags)
{
	return attach(h, p, n, flags, false);
}

EXPORT CUresult cuStreamAttachMemAsync_ptsz(CUstream h, CUdeviceptr p, size_t n, unsigned int flags)
{
	return attach(h, p, n, flags, true);
}
