/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered memory and memory of graphs. A pool is charged what it has
 * reserved, whatever of that is in use: before a call what the call may add to
 * it, after it what it did add. What a pool gives back later, when its streams
 * get on, is found when somebody asks or something is about to fail.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "memory.h"

/* How often an allocation that finds no room waits for one of another thread,
 * and for how long. */
#define TRIES       16
#define PATIENCE_NS 1000000000

struct pool {
	CUmemoryPool handle;       /* NULL: the memory of the device's graphs */
	CUdevice device;
	int gpu;
	uint64_t charged;
	bool charging;             /* a thread asks for more, without the lock */
	uint64_t pending;          /* bytes of allocations that are on their way to the driver */
	uint64_t ended;            /* allocations that are not on their way any more */
	unsigned users;
	bool gone;
	struct pool *next;
};

/* The lock is held while the driver is asked for a pool's numbers, so that a
 * pool is not destroyed meanwhile and numbers are not overtaken by newer ones;
 * never in an allocation and never while vgpud is asked. */
static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;    /* charging or ended, of any pool */
	struct pool *list;
	bool defaults;             /* those that are there without having been made */
} pools = { .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };

/* Bits of GPUs: with graphs that allocate, and where such a graph took more than
 * there is. Relaxed: whoever launches a graph learned in some way that it has
 * the node; the rest is about what comes next. */
static _Atomic uint32_t graphs, graph_debts;

/* ---- with the lock held --------------------------------------------------- */

static bool numbers(const struct pool *p, uint64_t *reserved, uint64_t *used)
{
	cuuint64_t r = 0, u = 0;
	bool ok;

	if (p->handle)
		ok = VGPU_REAL(cuMemPoolGetAttribute)(p->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &r) == CUDA_SUCCESS &&
		     VGPU_REAL(cuMemPoolGetAttribute)(p->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &u) == CUDA_SUCCESS;
	else
		ok = VGPU_REAL(cuDeviceGetGraphMemAttribute)(p->device, CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT, &r) == CUDA_SUCCESS &&
		     VGPU_REAL(cuDeviceGetGraphMemAttribute)(p->device, CU_GRAPH_MEM_ATTR_USED_MEM_CURRENT, &u) == CUDA_SUCCESS;
	*reserved = r;
	*used = u;
	return ok;
}

/* What a charge is for: an allocation that is yet to be made, or what was done. */
enum cause { BEFORE, AFTER };

/* Gives back what is charged too much. What is missing is returned. */
static uint64_t settle(struct pool *p, enum cause cause)
{
	uint64_t reserved, used, most;

	if (!numbers(p, &reserved, &used))
		reserved = used = 0; /* a driver that does not say: only what is on its way */
	most = used > UINT64_MAX - p->pending ? UINT64_MAX : used + p->pending;
	most = most > reserved ? most : reserved;
	if (p->charged > most) {
		vgpu_gate_refund((unsigned)p->gpu, p->charged - most);
		p->charged = most;
	}
	if (cause == AFTER)
		most = reserved;
	return most > p->charged ? most - p->charged : 0;
}

static struct pool *find(CUmemoryPool handle)
{
	struct pool *p = pools.list;

	while (p && p->handle != handle)
		p = p->next;
	return p;
}

static struct pool *add(CUmemoryPool handle, CUdevice device)
{
	int gpu = vgpu_device_gpu(device);
	struct pool *p = gpu < 0 ? NULL : calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->handle = handle;
	p->device = device;
	p->gpu = gpu;
	p->next = pools.list;
	pools.list = p;
	return p;
}

static void add_defaults(void)
{
	CUmemoryPool handle;
	CUdevice device;

	for (int i = 0; i < VGPU_UUIDS; i++) {
		device = vgpu_gpu_device(i);
		if (device >= 0 && VGPU_REAL(cuDeviceGetDefaultMemPool)(&handle, device) == CUDA_SUCCESS && !find(handle))
			add(handle, device);
	}
	pools.defaults = true;
}

static void trim(struct pool *p)
{
	if (p->handle)
		VGPU_REAL(cuMemPoolTrimTo)(p->handle, 0);
	else
		VGPU_REAL(cuDeviceGraphMemTrim)(p->device);
}

/* ---- without -------------------------------------------------------------- */

/* NULL: a pool that another process exported, or of host memory. */
static struct pool *use(CUmemoryPool handle)
{
	struct pool *p;

	pthread_mutex_lock(&pools.lock);
	p = find(handle);
	if (!p && !pools.defaults) {
		add_defaults();
		p = find(handle);
	}
	if (p)
		p->users++;
	pthread_mutex_unlock(&pools.lock);
	return p;
}

static void unuse(struct pool *p)
{
	bool last;

	pthread_mutex_lock(&pools.lock);
	last = --p->users == 0 && p->gone;
	pthread_mutex_unlock(&pools.lock);
	if (last)
		free(p);
}

/* Charges what is missing. One thread at a time: what another one asks for it may
 * not get. False: there is not so much. */
static bool charge_missing(struct pool *p, enum cause cause)
{
	uint64_t missing;
	bool ok;

	pthread_mutex_lock(&pools.lock);
	while (p->charging)
		pthread_cond_wait(&pools.changed, &pools.lock);
	missing = p->gone ? 0 : settle(p, cause);
	p->charging = missing > 0;
	pthread_mutex_unlock(&pools.lock);
	if (!missing)
		return true;
	ok = vgpu_gate_charge((unsigned)p->gpu, missing) == 0;
	pthread_mutex_lock(&pools.lock);
	p->charging = false;
	pthread_cond_broadcast(&pools.changed);
	if (ok && p->gone) /* destroyed meanwhile: nobody else gives it back */
		vgpu_gate_refund((unsigned)p->gpu, missing);
	else if (ok)
		p->charged += missing;
	pthread_mutex_unlock(&pools.lock);
	return ok;
}

/* Makes the charge of a pool what it must be. False: there is not so much. */
static bool cover(struct pool *p, enum cause cause)
{
	int cancel;
	bool ok;

	/* The wait for another thread is a point of cancellation. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	ok = charge_missing(p, cause);
	if (!ok) {
		vgpu_pools_reclaim(p->gpu);
		ok = charge_missing(p, cause);
	}
	pthread_setcancelstate(cancel, &cancel);
	return ok;
}

static void each(int gpu, bool trimmed)
{
	struct vgpu_own own;

	/* Others' captures must not end by what is asked here. */
	vgpu_own_begin(&own, NULL);
	pthread_mutex_lock(&pools.lock);
	for (struct pool *p = pools.list; p; p = p->next) {
		if (p->gpu != gpu)
			continue;
		if (trimmed)
			trim(p);
		/* What it got beyond the limit, and could not let go of before the
		 * free in its stream, must not stay. */
		if (settle(p, AFTER) > 0 && !trimmed) {
			trim(p);
			settle(p, AFTER);
		}
	}
	pthread_mutex_unlock(&pools.lock);
	vgpu_own_end(&own);
}

void vgpu_pools_settle(int gpu)
{
	each(gpu, false);
}

void vgpu_pools_reclaim(int gpu)
{
	each(gpu, true);
}

/* ---- allocations ----------------------------------------------------------- */

struct allocation {
	struct pool *pool;         /* NULL: not charged */
	CUstream stream;
	CUdevice device;           /* of the stream */
	bool captured;
	size_t bytes;
	CUdeviceptr *dptr, old;
};

static CUdevice device_of(CUstream stream)
{
	CUcontext context, current = NULL;
	struct vgpu_own own;
	CUdevice device = -1;

	if (VGPU_REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
		device = -1;
	if (stream == CU_STREAM_LEGACY || stream == CU_STREAM_PER_THREAD ||
	    VGPU_REAL(cuStreamGetCtx)(stream, &context) != CUDA_SUCCESS ||
	    (VGPU_REAL(cuCtxGetCurrent)(&current) == CUDA_SUCCESS && current == context))
		return device;
	if (vgpu_own_begin(&own, context) == CUDA_SUCCESS && VGPU_REAL(cuCtxGetDevice)(&device) != CUDA_SUCCESS)
		device = -1;
	vgpu_own_end(&own);
	return device;
}

/* Returns what p->ended is then. */
static uint64_t set_pending(struct pool *p, size_t more, size_t less)
{
	uint64_t ended;

	pthread_mutex_lock(&pools.lock);
	p->pending += more;
	p->pending -= less;
	if (less) {
		p->ended++;
		pthread_cond_broadcast(&pools.changed);
	}
	ended = p->ended;
	pthread_mutex_unlock(&pools.lock);
	return ended;
}

/* An allocation that another thread has on its way may be counted twice, as
 * pending and as used. Waits for the end of one after so many, but no longer than
 * a driver takes: it may wait for something itself. False: there is none. */
static bool another_ended(struct pool *p, uint64_t ended)
{
	struct timespec until;
	bool another;
	int cancel;

	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_nsec += PATIENCE_NS;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	/* The wait is a point of cancellation, and the lock is held there. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	pthread_mutex_lock(&pools.lock);
	while (p->pending > 0 && p->ended == ended)
		if (pthread_cond_timedwait(&pools.changed, &pools.lock, &until) != 0)
			break;
	another = p->ended != ended;
	pthread_mutex_unlock(&pools.lock);
	pthread_setcancelstate(cancel, &cancel);
	return another;
}

/* What is used may count memory whose free is on its way: the driver uses it
 * again without reserving more. So the driver may be asked all the same, unless
 * the pool is too small for that, or holds already what could not be charged. */
static bool may_reuse(struct pool *p)
{
	uint64_t reserved, used;
	bool may;

	pthread_mutex_lock(&pools.lock);
	may = !p->gone && numbers(p, &reserved, &used) && reserved >= p->pending && reserved <= p->charged;
	pthread_mutex_unlock(&pools.lock);
	return may;
}

static CUresult begin(struct allocation *a, CUmemoryPool handle)
{
	uint64_t ended;

	a->old = a->dptr ? *a->dptr : 0;
	a->pool = !a->captured && a->bytes > 0 ? use(handle) : NULL;
	if (!a->pool)
		return CUDA_SUCCESS;
	if (a->bytes > UINT64_MAX / 2) { /* no such sum can be known */
		unuse(a->pool);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	for (int i = 0; i < TRIES; i++) {
		ended = set_pending(a->pool, a->bytes, 0);
		if (cover(a->pool, BEFORE) || may_reuse(a->pool))
			return CUDA_SUCCESS;
		set_pending(a->pool, 0, a->bytes);
		if (!another_ended(a->pool, ended + 1)) /* one is its own */
			break;
	}
	unuse(a->pool);
	return CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult end(struct allocation *a, CUresult r)
{
	if (a->captured && r == CUDA_SUCCESS)
		vgpu_graph_memory_used(a->device);
	if (!a->pool)
		return r;
	set_pending(a->pool, 0, a->bytes);
	if (!cover(a->pool, AFTER) && r == CUDA_SUCCESS) {
		VGPU_REAL(cuMemFreeAsync)(*a->dptr, a->stream);
		*a->dptr = a->old;
		pthread_mutex_lock(&pools.lock);
		if (!a->pool->gone) {
			trim(a->pool);
			settle(a->pool, AFTER);
		}
		pthread_mutex_unlock(&pools.lock);
		r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	unuse(a->pool);
	return r;
}

static void look_at(struct allocation *a, CUdeviceptr *dptr, size_t bytes, CUstream stream, enum vgpu_default d)
{
	*a = (struct allocation){ .stream = vgpu_stream_handle(stream, d), .bytes = bytes, .dptr = dptr };
	a->device = device_of(a->stream);
	a->captured = atomic_load_explicit(&vgpu_captures, memory_order_acquire) > 0 && vgpu_is_captured(a->stream);
}

static CUresult alloc_async(__typeof__(&cuMemAllocAsync) real, CUdeviceptr *dptr, size_t bytes, CUstream stream, enum vgpu_default d)
{
	struct allocation a;
	CUmemoryPool handle = NULL;
	CUresult r;

	vgpu_thread.nested++;
	look_at(&a, dptr, bytes, stream, d);
	if (VGPU_REAL(cuDeviceGetMemPool)(&handle, a.device) != CUDA_SUCCESS)
		handle = NULL;
	r = handle ? begin(&a, handle) : CUDA_SUCCESS;
	if (r == CUDA_SUCCESS)
		r = end(&a, real(dptr, bytes, stream));
	vgpu_thread.nested--;
	return r;
}

VGPU_HOOK(vgpu_mem_alloc_async, cuMemAllocAsync, CUdeviceptr *dptr, size_t bytes, CUstream stream)
{
	return vgpu_managed(caller) ? alloc_async(real, dptr, bytes, stream, VGPU_LEGACY) : real(dptr, bytes, stream);
}

VGPU_HOOK(vgpu_mem_alloc_async_ptsz, cuMemAllocAsync, CUdeviceptr *dptr, size_t bytes, CUstream stream)
{
	return vgpu_managed(caller) ? alloc_async(real, dptr, bytes, stream, VGPU_PER_THREAD) : real(dptr, bytes, stream);
}

static CUresult alloc_from_pool(__typeof__(&cuMemAllocFromPoolAsync) real, CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool,
				CUstream stream, enum vgpu_default d)
{
	struct allocation a;
	CUresult r;

	vgpu_thread.nested++;
	look_at(&a, dptr, bytes, stream, d);
	r = pool ? begin(&a, pool) : CUDA_SUCCESS;
	if (r == CUDA_SUCCESS)
		r = end(&a, real(dptr, bytes, pool, stream));
	vgpu_thread.nested--;
	return r;
}

VGPU_HOOK(vgpu_mem_alloc_from_pool, cuMemAllocFromPoolAsync, CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool,
	  CUstream stream)
{
	return vgpu_managed(caller) ? alloc_from_pool(real, dptr, bytes, pool, stream, VGPU_LEGACY) : real(dptr, bytes, pool, stream);
}

VGPU_HOOK(vgpu_mem_alloc_from_pool_ptsz, cuMemAllocFromPoolAsync, CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool,
	  CUstream stream)
{
	return vgpu_managed(caller) ? alloc_from_pool(real, dptr, bytes, pool, stream, VGPU_PER_THREAD) :
				      real(dptr, bytes, pool, stream);
}

/* It may also free what is of no pool. */
static CUresult free_async(__typeof__(&cuMemFreeAsync) real, CUdeviceptr dptr, CUstream stream, enum vgpu_default d)
{
	struct vgpu_charge *c;
	CUresult r;

	vgpu_thread.nested++;
	if (atomic_load_explicit(&vgpu_captures, memory_order_acquire) > 0 && vgpu_is_captured(vgpu_stream_handle(stream, d))) {
		r = real(dptr, stream);
	} else {
		c = vgpu_charge_take(VGPU_CHARGE_POINTER, dptr);
		r = real(dptr, stream);
		vgpu_charge_taken(c, r == CUDA_SUCCESS);
	}
	vgpu_thread.nested--;
	return r;
}

VGPU_HOOK(vgpu_mem_free_async, cuMemFreeAsync, CUdeviceptr dptr, CUstream stream)
{
	return vgpu_managed(caller) ? free_async(real, dptr, stream, VGPU_LEGACY) : real(dptr, stream);
}

VGPU_HOOK(vgpu_mem_free_async_ptsz, cuMemFreeAsync, CUdeviceptr dptr, CUstream stream)
{
	return vgpu_managed(caller) ? free_async(real, dptr, stream, VGPU_PER_THREAD) : real(dptr, stream);
}

/* ---- pools ------------------------------------------------------------------ */

VGPU_HOOK(vgpu_mem_pool_create, cuMemPoolCreate, CUmemoryPool *pool, const CUmemPoolProps *props)
{
	CUresult r;

	if (!vgpu_managed(caller))
		return real(pool, props);
	vgpu_thread.nested++;
	r = real(pool, props);
	if (r == CUDA_SUCCESS && props->location.type == CU_MEM_LOCATION_TYPE_DEVICE && vgpu_device_gpu(props->location.id) >= 0) {
		pthread_mutex_lock(&pools.lock);
		if (!add(*pool, props->location.id)) {
			VGPU_REAL(cuMemPoolDestroy)(*pool);
			r = CUDA_ERROR_OUT_OF_MEMORY;
		}
		pthread_mutex_unlock(&pools.lock);
	}
	vgpu_thread.nested--;
	return r;
}

void vgpu_pool_told(struct vgpu_call *call, CUresult r, CUmemLocation *location, CUmemAllocationType type)
{
	CUmemoryPool handle;

	(void)call;
	/* The default one: another may be one that was imported. */
	if (r == CUDA_SUCCESS && location->type == CU_MEM_LOCATION_TYPE_DEVICE &&
	    VGPU_REAL(cuMemGetDefaultMemPool)(&handle, location, type) == CUDA_SUCCESS) {
		pthread_mutex_lock(&pools.lock);
		if (!find(handle))
			add(handle, location->id);
		pthread_mutex_unlock(&pools.lock);
	}
	vgpu_nested_end();
}

/* Out of the list before the driver is asked: it may give out the handle again. */
static struct pool *take(CUmemoryPool handle)
{
	struct pool **at, *p;

	pthread_mutex_lock(&pools.lock);
	for (at = &pools.list; *at && (*at)->handle != handle;)
		at = &(*at)->next;
	p = handle ? *at : NULL;
	if (p)
		*at = p->next;
	pthread_mutex_unlock(&pools.lock);
	return p;
}

static void taken(struct pool *p, bool gone)
{
	bool unused;

	pthread_mutex_lock(&pools.lock);
	if (gone) {
		p->gone = true;
		vgpu_gate_refund((unsigned)p->gpu, p->charged);
		p->charged = 0;
	} else {
		p->next = pools.list;
		pools.list = p;
	}
	unused = gone && p->users == 0;
	pthread_mutex_unlock(&pools.lock);
	if (unused)
		free(p);
}

VGPU_HOOK(vgpu_mem_pool_destroy, cuMemPoolDestroy, CUmemoryPool pool)
{
	struct pool *p;
	CUresult r;

	if (!vgpu_managed(caller))
		return real(pool);
	vgpu_thread.nested++;
	p = take(pool);
	r = real(pool);
	if (p)
		taken(p, r == CUDA_SUCCESS);
	vgpu_thread.nested--;
	return r;
}

/* Of a pool, or of the graphs: all are looked at, which is seldom. */
void vgpu_pool_trimmed(struct vgpu_call *call)
{
	(void)call;
	for (int i = 0; i < VGPU_UUIDS; i++)
		if (vgpu_gpu_device(i) >= 0)
			vgpu_pools_settle(i);
	vgpu_nested_end();
}

/* ---- graphs ----------------------------------------------------------------- */

/* With the lock held. One that was added is never taken away. */
static struct pool *graph_pool(int gpu)
{
	struct pool *p = pools.list;

	while (p && (p->handle || p->gpu != gpu))
		p = p->next;
	return p;
}

void vgpu_graph_memory_used(CUdevice device)
{
	int gpu = vgpu_device_gpu(device);
	bool there;

	if (gpu < 0 || atomic_load_explicit(&graphs, memory_order_relaxed) & 1u << gpu)
		return;
	pthread_mutex_lock(&pools.lock);
	there = graph_pool(gpu) || add(NULL, device);
	pthread_mutex_unlock(&pools.lock);
	if (there)
		atomic_fetch_or_explicit(&graphs, 1u << gpu, memory_order_relaxed);
}

/* What a launch took can not be taken back: it is owed, and nothing is launched
 * before it is covered. */
static void cover_graphs(uint32_t which)
{
	struct pool *p;

	for (int gpu = 0; gpu < VGPU_UUIDS; gpu++) {
		if (!(which & 1u << gpu))
			continue;
		pthread_mutex_lock(&pools.lock);
		p = graph_pool(gpu);
		pthread_mutex_unlock(&pools.lock);
		if (!p)
			continue;
		if (cover(p, AFTER))
			atomic_fetch_and_explicit(&graph_debts, ~(1u << gpu), memory_order_relaxed);
		else
			atomic_fetch_or_explicit(&graph_debts, 1u << gpu, memory_order_relaxed);
	}
}

bool vgpu_graph_memory_full(void)
{
	uint32_t debts = atomic_load_explicit(&graph_debts, memory_order_relaxed);

	if (!debts)
		return false;
	vgpu_thread.nested++;
	cover_graphs(debts);
	vgpu_thread.nested--;
	return atomic_load_explicit(&graph_debts, memory_order_relaxed) != 0;
}

void vgpu_graph_memory_launched(void)
{
	uint32_t which = atomic_load_explicit(&graphs, memory_order_relaxed);

	if (!which)
		return;
	vgpu_thread.nested++;
	cover_graphs(which);
	vgpu_thread.nested--;
}

void vgpu_graph_alloc_end(struct vgpu_call *call, CUresult r, const CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
	(void)call;
	if (r == CUDA_SUCCESS && params->poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE)
		vgpu_graph_memory_used(params->poolProps.location.id);
	vgpu_nested_end();
}

void vgpu_graph_node_end(CUresult r, const CUgraphNodeParams *params)
{
	if (r == CUDA_SUCCESS && params && params->type == CU_GRAPH_NODE_TYPE_MEM_ALLOC &&
	    params->alloc.poolProps.location.type == CU_MEM_LOCATION_TYPE_DEVICE)
		vgpu_graph_memory_used(params->alloc.poolProps.location.id);
}
