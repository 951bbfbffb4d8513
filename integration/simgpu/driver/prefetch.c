/* SPDX-License-Identifier: Apache-2.0 */
/* Prefetches of managed memory: work of the length of a copy. */
#include "copy.h"
#include "memory.h"

struct wish {
	CUdeviceptr at;
	size_t n;
	CUmemLocation to;
};

static CUresult check(const struct wish *w)
{
	CUresult r = location_check(&w->to);

	if (r)
		return r;
	lock();
	const struct allocation *a = memory_find_locked(w->at);
	bool ok = a && a->kind == MEMORY_MANAGED && w->n && memory_at_locked(w->at, w->n);
	return leave(ok ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}

/* Modelled as a copy onto itself: the time passes, the contents stay. */
static CUresult start(const struct wish *w, CUstream h, const char *name, bool per_thread)
{
	CUresult r = copy_call(&(struct copy){ .dst = w->at, .src = w->at, .dst_pitch = w->n, .src_pitch = w->n,
					       .width = w->n, .height = 1 },
			       h, &(struct copy_mode){ .name = name, .async = true, .per_thread = per_thread });

	if (r)
		return r;
	lock();
	managed_prefetched_locked(w->at, w->n, w->to);
	return leave(CUDA_SUCCESS);
}

static CUresult prefetch(const struct wish *w, CUstream h, bool per_thread)
{
	CUresult r = enter();

	if (!r)
		r = check(w);
	return r ? r : start(w, h, "cuMemPrefetchAsync", per_thread);
}

static CUmemLocation of_device(CUdevice dev)
{
	return (CUmemLocation){ .type = dev == CU_DEVICE_CPU ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE,
				.id = dev == CU_DEVICE_CPU ? 0 : dev };
}

EXPORT CUresult cuMemPrefetchAsync(CUdeviceptr p, size_t n, CUdevice to, CUstream h)
{
	return prefetch(&(struct wish){ p, n, of_device(to) }, h, false);
}

EXPORT CUresult cuMemPrefetchAsync_ptsz(CUdeviceptr p, size_t n, CUdevice to, CUstream h)
{
	return prefetch(&(struct wish){ p, n, of_device(to) }, h, true);
}

EXPORT CUresult cuMemPrefetchAsync_v2(CUdeviceptr p, size_t n, CUmemLocation to, unsigned int flags, CUstream h)
{
	return flags ? CUDA_ERROR_INVALID_VALUE : prefetch(&(struct wish){ p, n, to }, h, false);
}

EXPORT CUresult cuMemPrefetchAsync_v2_ptsz(CUdeviceptr p, size_t n, CUmemLocation to, unsigned int flags, CUstream h)
{
	return flags ? CUDA_ERROR_INVALID_VALUE : prefetch(&(struct wish){ p, n, to }, h, true);
}

struct batch {
	const CUdeviceptr *at;
	const size_t *n;
	size_t count;
	const CUmemLocation *to;
	const size_t *first; /* range from which on a location holds */
	size_t n_to;
};

/* Locations hold for ranges from an index on: the first one from 0, the others further on each. */
static bool batch_ok(const struct batch *b)
{
	if (!b->at || !b->n || !b->to || !b->first || b->count == 0 || b->n_to == 0 || b->n_to > b->count || b->first[0] != 0)
		return false;
	for (size_t i = 1; i < b->n_to; i++)
		if (b->first[i] <= b->first[i - 1] || b->first[i] >= b->count)
			return false;
	return true;
}

static struct wish wish_of(const struct batch *b, size_t i)
{
	size_t l = 0;

	while (l + 1 < b->n_to && b->first[l + 1] <= i)
		l++;
	return (struct wish){ b->at[i], b->n[i], b->to[l] };
}

/* One piece of work for each range. The order among them is not promised, here it is that of the stream. */
static CUresult prefetch_batch(const struct batch *b, unsigned long long flags, CUstream h, const char *name, bool per_thread)
{
	CUresult r = enter();

	if (r)
		return r;
	if (flags || !batch_ok(b) || h == CU_STREAM_LEGACY || (!h && !per_thread))
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < b->count && !r; i++) {
		struct wish w = wish_of(b, i);

		r = check(&w);
	}
	for (size_t i = 0; i < b->count && !r; i++) {
		struct wish w = wish_of(b, i);

		r = start(&w, h, name, per_thread);
	}
	return r;
}

#define PREFETCH_BATCH(NAME)                                                                                           \
	EXPORT CUresult NAME(CUdeviceptr *at, size_t *n, size_t count, CUmemLocation *to, size_t *first, size_t n_to,  \
			     unsigned long long flags, CUstream h)                                                     \
	{                                                                                                              \
		return prefetch_batch(&(struct batch){ at, n, count, to, first, n_to }, flags, h, #NAME, false);       \
	}                                                                                                              \
	EXPORT CUresult NAME##_ptsz(CUdeviceptr *at, size_t *n, size_t count, CUmemLocation *to, size_t *first,        \
				    size_t n_to, unsigned long long flags, CUstream h)                                 \
	{                                                                                                              \
		return prefetch_batch(&(struct batch){ at, n, count, to, first, n_to }, flags, h, #NAME, true);        \
	}

PREFETCH_BATCH(cuMemPrefetchBatchAsync)
PREFETCH_BATCH(cuMemDiscardAndPrefetchBatchAsync)
