/* SPDX-License-Identifier: Apache-2.0 */
/* Managed memory: advice changes nothing, a prefetch is work of the length of a copy. */
#include "copy.h"

/* Modelled as a copy onto itself: the time passes, the contents stay. */
static CUresult prefetch(CUdeviceptr p, size_t n, CUstream h, bool per_thread)
{
	CUresult r = enter();

	if (r)
		return r;
	lock();
	const struct allocation *a = memory_find_locked(p);
	bool ok = a && a->kind == MEMORY_MANAGED && n && memory_at_locked(p, n);
	unlock();
	if (!ok)
		return CUDA_ERROR_INVALID_VALUE;
	return copy_call(&(struct copy){ .dst = p, .src = p, .dst_pitch = n, .src_pitch = n, .width = n, .height = 1 }, h,
			 &(struct copy_mode){ "cuMemPrefetchAsync", true, per_thread });
}

EXPORT CUresult cuMemPrefetchAsync(CUdeviceptr p, size_t n, CUdevice to, CUstream h)
{
	(void)to;
	return prefetch(p, n, h, false);
}

EXPORT CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr p, size_t n, CUdevice to, CUstream h)
{
	(void)to;
	return prefetch(p, n, h, true);
}

EXPORT CUresult cuMemPrefetchAsync_v2(CUdeviceptr p, size_t n, CUmemLocation to, unsigned int flags, CUstream h)
{
	(void)to;
	return flags ? CUDA_ERROR_INVALID_VALUE : prefetch(p, n, h, false);
}

EXPORT CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr p, size_t n, CUmemLocation to, unsigned int flags, CUstream h)
{
	(void)to;
	return flags ? CUDA_ERROR_INVALID_VALUE : prefetch(p, n, h, true);
}

static CUresult advise(CUdeviceptr p)
{
	CUresult r = enter();

	if (r)
		return r;
	lock();
	const struct allocation *a = memory_find_locked(p);
	return leave(a && a->kind == MEMORY_MANAGED ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

EXPORT CUresult cuMemAdvise(CUdeviceptr p, size_t n, CUmem_advise advice, CUdevice dev)
{
	(void)n;
	(void)advice;
	(void)dev;
	return advise(p);
}

EXPORT CUresult cuMemAdvise_v2(CUdeviceptr p, size_t n, CUmem_advise advice, CUmemLocation at)
{
	(void)n;
	(void)advice;
	(void)at;
	return advise(p);
}
