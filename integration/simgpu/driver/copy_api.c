/* SPDX-License-Identifier: Apache-2.0 */
/* Linear copies. Each call comes in two default-stream flavours. */
#include "copy.h"

#define AT(p) ((uint64_t)(uintptr_t)(p))

static CUresult linear(uint64_t dst, uint64_t src, size_t n, CUstream h, const struct copy_mode *m)
{
	return copy_call(&(struct copy){ .dst = dst, .src = src, .dst_pitch = n, .src_pitch = n, .width = n, .height = 1 }, h, m);
}

/* NAME: base name; V: suffix of the version; TO, FROM: parameter types; the last two: which side must be memory of the driver */
#define COPY_SYNC(NAME, V, TO, FROM, TO_DEVICE, FROM_DEVICE)                                                                           \
	EXPORT CUresult NAME##V(TO dst, FROM src, size_t n)                                                            \
	{                                                                                                              \
		return linear(AT(dst), AT(src), n, NULL, &(struct copy_mode){ .name = #NAME, .async = false, .per_thread = false, .to_device = TO_DEVICE, .from_device = FROM_DEVICE }); \
	}                                                                                                              \
	EXPORT CUresult NAME##V##_ptds(TO dst, FROM src, size_t n)                                                     \
	{                                                                                                              \
		return linear(AT(dst), AT(src), n, NULL, &(struct copy_mode){ .name = #NAME, .async = false, .per_thread = true, .to_device = TO_DEVICE, .from_device = FROM_DEVICE }); \
	}

#define COPY_ASYNC(NAME, V, TO, FROM, TO_DEVICE, FROM_DEVICE)                                                                           \
	EXPORT CUresult NAME##V(TO dst, FROM src, size_t n, CUstream h)                                                \
	{                                                                                                              \
		return linear(AT(dst), AT(src), n, h, &(struct copy_mode){ .name = #NAME, .async = true, .per_thread = false, .to_device = TO_DEVICE, .from_device = FROM_DEVICE }); \
	}                                                                                                              \
	EXPORT CUresult NAME##V##_ptsz(TO dst, FROM src, size_t n, CUstream h)                                         \
	{                                                                                                              \
		return linear(AT(dst), AT(src), n, h, &(struct copy_mode){ .name = #NAME, .async = true, .per_thread = true, .to_device = TO_DEVICE, .from_device = FROM_DEVICE }); \
	}

COPY_SYNC(cuMemcpy, , CUdeviceptr, CUdeviceptr, false, false)
COPY_SYNC(cuMemcpyHtoD, _v2, CUdeviceptr, const void *, true, false)
COPY_SYNC(cuMemcpyDtoH, _v2, void *, CUdeviceptr, false, true)
COPY_SYNC(cuMemcpyDtoD, _v2, CUdeviceptr, CUdeviceptr, true, true)
COPY_ASYNC(cuMemcpyAsync, , CUdeviceptr, CUdeviceptr, false, false)
COPY_ASYNC(cuMemcpyHtoDAsync, _v2, CUdeviceptr, const void *, true, false)
COPY_ASYNC(cuMemcpyDtoHAsync, _v2, void *, CUdeviceptr, false, true)
COPY_ASYNC(cuMemcpyDtoDAsync, _v2, CUdeviceptr, CUdeviceptr, true, true)

static CUresult peer(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t n, CUstream h,
		     const char *name, bool async, bool per_thread)
{
	CUresult r = enter();

	if (r)
		return r;
	lock();
	bool ok = context_get_locked(to) && context_get_locked(from);
	unlock();
	return ok ? linear(dst, src, n, h, &(struct copy_mode){ .name = name, .async = async, .per_thread = per_thread, .to_device = true, .from_device = true }) : CUDA_ERROR_INVALID_CONTEXT;
}

EXPORT CUresult cuMemcpyPeer(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t n)
{
	return peer(dst, to, src, from, n, NULL, "cuMemcpyPeer", false, false);
}

EXPORT CUresult cuMemcpyPeer_ptds(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t n)
{
	return peer(dst, to, src, from, n, NULL, "cuMemcpyPeer", false, true);
}

EXPORT CUresult cuMemcpyPeerAsync(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t n, CUstream h)
{
	return peer(dst, to, src, from, n, h, "cuMemcpyPeerAsync", true, false);
}

EXPORT CUresult cuMemcpyPeerAsync_ptsz(CUdeviceptr dst, CUcontext to, CUdeviceptr src, CUcontext from, size_t n, CUstream h)
{
	return peer(dst, to, src, from, n, h, "cuMemcpyPeerAsync", true, true);
}
