/* SPDX-License-Identifier: Apache-2.0 */
/* Managed memory whose contents are of no use any more. What is discarded may read as anything: here it stays as it is. */
#include "copy.h"

/* A batch that is wrong anywhere does nothing. One record for each range. */
static CUresult discard(const CUdeviceptr *p, const size_t *sizes, size_t n, unsigned long long flags, CUstream h, bool per_thread)
{
	CUresult r = enter();

	if (r)
		return r;
	if (!n || !p || !sizes || flags)
		return CUDA_ERROR_INVALID_VALUE;
	lock();
	for (size_t i = 0; i < n; i++) {
		const struct allocation *a = memory_find_locked(p[i]);

		if (!a || a->kind != MEMORY_MANAGED || !sizes[i] || !memory_at_locked(p[i], sizes[i]))
			return leave(CUDA_ERROR_INVALID_VALUE);
	}
	unlock();
	for (size_t i = 0; i < n && !r; i++)
		r = copy_call(&(struct copy){ .dst = p[i], .src = p[i], .dst_pitch = sizes[i], .src_pitch = sizes[i], .width = sizes[i],
					      .height = 1 },
			      h, &(struct copy_mode){ .name = "cuMemDiscardBatchAsync", .async = true, .per_thread = per_thread });
	return r;
}

EXPORT CUresult cuMemDiscardBatchAsync(CUdeviceptr *p, size_t *sizes, size_t n, unsigned long long flags, CUstream h)
{
	return discard(p, sizes, n, flags, h, false);
}

EXPORT CUresult cuMemDiscardBatchAsync_ptsz(CUdeviceptr *p, size_t *sizes, size_t n, unsigned long long flags, CUstream h)
{
	return discard(p, sizes, n, flags, h, true);
}
