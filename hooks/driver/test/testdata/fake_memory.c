/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The fake driver's memory. It is as small as can be: one GPU's worth of bytes a
 * device, addresses given out again as soon as they are free, pools that reserve
 * whole blocks and let go of them when something is synchronised.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define VGPU_CUDA_ABI_EXPORTS
#include "../../cuda_abi.h"

#define DEVICES 4
#define SLOTS   65536
#define BLOCK   ((size_t)4 << 20)

enum { FREE, PLAIN, MANAGED, ARRAY, MIPMAP, ASYNC };

struct CUmemPoolHandle_st {
	int alive;
	CUdevice device;
	size_t reserved, used, late; /* late: freed, but counted as used */
	size_t threshold;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static struct {
	int kind;
	size_t size;
	CUdevice device;
	CUcontext ctx;
	CUmemoryPool pool;
} slots[SLOTS];
static struct {
	int handles, maps;
	size_t size;
	CUdevice device;
} physical[256];
static struct {
	CUdeviceptr at;
	size_t size;
	int physical;
} maps[256];
static struct CUmemPoolHandle_st defaults[DEVICES];
static size_t total = (size_t)1 << 34, used[DEVICES], graph_reserved, graph_size;
static int pinned, fails, late, managed, stop_free, stop_async, stopped, asked, blocks = 1, pitches = 512;

void fake_context_gone(CUcontext ctx);
void fake_synchronised(void);
void fake_graph_launched(void);
/* The test's side. */
void fake_total(size_t bytes);
void fake_fail(int error);
void fake_late(int on);
void fake_blocks(int n);
void fake_pitch(int n);
void fake_pin_graphs(int on);
int fake_managed(void);
size_t fake_used(int device);
void fake_stop_free(int on);
void fake_stop_async(int on);
int fake_free_stopped(void);
int fake_pool_asked(void);
void fake_free_go(void);

void fake_total(size_t bytes) { total = bytes; }
void fake_fail(int error) { fails = error; }
void fake_late(int on) { late = on; }
void fake_blocks(int n) { blocks = n; }
void fake_pitch(int n) { pitches = n; }
void fake_pin_graphs(int on) { pinned = on; } /* their memory can not be trimmed */
int fake_managed(void) { return managed; }
size_t fake_used(int device) { return used[device]; }

static int read_locked(int *what)
{
	int v;

	pthread_mutex_lock(&lock);
	v = *what;
	pthread_mutex_unlock(&lock);
	return v;
}

/* The next free stops once its address can be given out again. */
void fake_stop_free(int on)
{
	pthread_mutex_lock(&lock);
	stop_free = on;
	pthread_mutex_unlock(&lock);
}

/* The next allocation of a pool stops when it is counted. */
void fake_stop_async(int on)
{
	pthread_mutex_lock(&lock);
	stop_async = on;
	pthread_mutex_unlock(&lock);
}

int fake_free_stopped(void) { return read_locked(&stopped); }
/* How often a pool was asked how it stands. */
int fake_pool_asked(void) { return read_locked(&asked); }

void fake_free_go(void)
{
	pthread_mutex_lock(&lock);
	stopped = 0;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

/* Under the lock. */
static int reserve(CUdevice d, size_t size)
{
	if (size > total - used[d])
		return 0;
	used[d] += size;
	return 1;
}

static CUdeviceptr address(int slot)
{
	return (CUdeviceptr)(slot + 1) << 16;
}

static int slot_of(CUdeviceptr p)
{
	CUdeviceptr slot = (p >> 16) - 1;

	return p == 0 || p & 0xffff || slot >= SLOTS || slots[slot].kind == FREE ? -1 : (int)slot;
}

/* Under the lock: the lowest address that is free. */
static int take_slot(int kind, size_t size, CUdevice d)
{
	int i;

	for (i = 0; i < SLOTS && slots[i].kind != FREE; i++)
		;
	if (i == SLOTS)
		return -1;
	slots[i].kind = kind;
	slots[i].size = size;
	slots[i].device = d;
	slots[i].pool = NULL;
	cuCtxGetCurrent(&slots[i].ctx);
	return i;
}

static CUresult alloc(CUdeviceptr *out, size_t size, int kind)
{
	CUdevice d;
	CUresult r = cuCtxGetDevice(&d);
	int i;

	if (r)
		return r;
	if (!out || size == 0)
		return CUDA_ERROR_INVALID_VALUE;
	if (fails)
		return fails;
	pthread_mutex_lock(&lock);
	i = reserve(d, size) ? take_slot(kind, size, d) : -1;
	if (i >= 0)
		*out = address(i);
	managed += kind == MANAGED;
	pthread_mutex_unlock(&lock);
	return i >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

static CUresult release(CUdeviceptr p, int kind)
{
	CUresult r = CUDA_SUCCESS;
	int i;

	if (fails)
		return fails;
	pthread_mutex_lock(&lock);
	i = slot_of(p);
	if (i < 0 || (kind ? slots[i].kind != kind : slots[i].kind > MANAGED)) {
		r = CUDA_ERROR_INVALID_VALUE;
	} else {
		slots[i].kind = FREE;
		used[slots[i].device] -= slots[i].size;
		if (stop_free) {
			stop_free = 0;
			stopped = 1;
			while (stopped)
				pthread_cond_wait(&changed, &lock);
		}
	}
	pthread_mutex_unlock(&lock);
	return r;
}

void fake_context_gone(CUcontext ctx)
{
	pthread_mutex_lock(&lock);
	for (int i = 0; i < SLOTS; i++) {
		if (slots[i].kind != FREE && slots[i].kind != ASYNC && slots[i].ctx == ctx) {
			slots[i].kind = FREE;
			used[slots[i].device] -= slots[i].size;
		}
	}
	pthread_mutex_unlock(&lock);
}

CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size) { return alloc(out, size, PLAIN); }
CUresult cuMemFree_v2(CUdeviceptr p) { return p ? release(p, 0) : CUDA_SUCCESS; }
CUresult cuMemFree(CUdeviceptr_v1 p) { return cuMemFree_v2(p); }

CUresult cuMemAlloc(CUdeviceptr_v1 *out, unsigned int size)
{
	CUdeviceptr p;
	CUresult r = alloc(&p, size, PLAIN);

	if (!r)
		*out = (CUdeviceptr_v1)p;
	return r;
}

CUresult cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned int flags)
{
	(void)flags;
	return alloc(out, size, MANAGED);
}

CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned int element)
{
	size_t row = (width + pitches - 1) / pitches * pitches;

	(void)element;
	if (row < width || row > SIZE_MAX / height)
		return CUDA_ERROR_INVALID_VALUE;
	*pitch = row;
	return alloc(out, row * height, PLAIN);
}

CUresult cuMemGetInfo_v2(size_t *f, size_t *t)
{
	CUdevice d;
	CUresult r = cuCtxGetDevice(&d);

	if (r)
		return r;
	if (!f || !t)
		return CUDA_ERROR_INVALID_VALUE;
	*f = total - used[d];
	*t = total;
	return CUDA_SUCCESS;
}

CUresult cuMemGetInfo(unsigned int *f, unsigned int *t)
{
	size_t f64, t64;
	CUresult r = cuMemGetInfo_v2(&f64, &t64);

	if (r)
		return r;
	*f = f64 > UINT32_MAX ? UINT32_MAX : (unsigned int)f64;
	*t = t64 > UINT32_MAX ? UINT32_MAX : (unsigned int)t64;
	return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice d)
{
	(void)d;
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = total;
	return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice d)
{
	(void)d;
	*bytes = total > UINT32_MAX ? UINT32_MAX : (unsigned int)total;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int len, CUdevice d)
{
	(void)d;
	if (!name || len <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(name, (size_t)len, "Fake GPU");
	return CUDA_SUCCESS;
}

/* ---- arrays: a byte an element is enough here ------------------------------- */

static CUresult array(void **out, size_t size, int kind)
{
	CUdeviceptr p;
	CUresult r = alloc(&p, size, kind);

	if (!r)
		*out = (void *)(uintptr_t)p;
	return r;
}

CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *d)
{
	return array((void **)out, d->Width, ARRAY);
}

CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d)
{
	return array((void **)out, d->Width, ARRAY);
}

CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels)
{
	(void)levels;
	return array((void **)out, d->Width, MIPMAP);
}

CUresult cuArrayDestroy(CUarray a) { return release((CUdeviceptr)(uintptr_t)a, ARRAY); }
CUresult cuMipmappedArrayDestroy(CUmipmappedArray a) { return release((CUdeviceptr)(uintptr_t)a, MIPMAP); }

/* ---- pools ------------------------------------------------------------------- */

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice d)
{
	defaults[d].alive = 1;
	defaults[d].device = d;
	*out = &defaults[d];
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice d)
{
	return d < 0 ? CUDA_ERROR_INVALID_DEVICE : cuDeviceGetDefaultMemPool(out, d);
}

CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props)
{
	static struct CUmemPoolHandle_st made[16]; /* none is used again */
	static int n;

	*out = &made[n++];
	(*out)->alive = 1;
	(*out)->device = props->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? props->location.id : DEVICES - 1;
	return CUDA_SUCCESS;
}

/* Under the lock. */
static void shrink(CUmemoryPool p, size_t keep)
{
	size_t need = (p->used + blocks * BLOCK - 1) / (blocks * BLOCK) * (blocks * BLOCK);

	keep = keep > need ? keep : need;
	if (p->reserved > keep) {
		used[p->device] -= p->reserved - keep;
		p->reserved = keep;
	}
}

CUresult cuMemPoolDestroy(CUmemoryPool p)
{
	if (fails)
		return fails;
	pthread_mutex_lock(&lock);
	p->used = p->late = 0;
	shrink(p, 0);
	p->alive = 0;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuMemPoolTrimTo(CUmemoryPool p, size_t keep)
{
	pthread_mutex_lock(&lock);
	shrink(p, keep);
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool p, CUmemPool_attribute a, void *value)
{
	if (a != CU_MEMPOOL_ATTR_RELEASE_THRESHOLD)
		return CUDA_ERROR_NOT_SUPPORTED;
	p->threshold = *(cuuint64_t *)value;
	return CUDA_SUCCESS;
}

CUresult cuMemPoolGetAttribute(CUmemoryPool p, CUmemPool_attribute a, void *value)
{
	pthread_mutex_lock(&lock);
	if (!p->alive) {
		fprintf(stderr, "fake driver: a destroyed pool was asked\n");
		abort();
	}
	asked++;
	*(cuuint64_t *)value = a == CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT ? p->reserved : p->used;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, CUmemoryPool p, CUstream s)
{
	CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
	size_t more = 0;
	int i = -1;

	if (fails)
		return fails;
	if (size > SIZE_MAX / 2)
		return CUDA_ERROR_INVALID_VALUE;
	cuStreamIsCapturing(s, &status);
	pthread_mutex_lock(&lock);
	if (status == CU_STREAM_CAPTURE_STATUS_NONE) {
		if (p->used - p->late + size > p->reserved)
			more = (p->used - p->late + size - p->reserved + blocks * BLOCK - 1) / (blocks * BLOCK) * (blocks * BLOCK);
		if (reserve(p->device, more))
			i = take_slot(ASYNC, size, p->device);
	} else {
		graph_size = size;
		i = SLOTS - 1;
	}
	if (i >= 0 && i < SLOTS - 1) {
		slots[i].pool = p;
		p->reserved += more;
		p->used += size;
		if (p->late >= size) { /* uses it again */
			p->late -= size;
			p->used -= size;
		}
	}
	if (i >= 0)
		*out = address(i);
	if (stop_async) {
		stop_async = 0;
		stopped = 1;
		while (stopped)
			pthread_cond_wait(&changed, &lock);
	}
	pthread_mutex_unlock(&lock);
	return i >= 0 ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream s)
{
	CUdevice d;
	CUmemoryPool p;
	CUresult r = cuCtxGetDevice(&d);

	if (r)
		return r;
	cuDeviceGetMemPool(&p, d);
	return cuMemAllocFromPoolAsync(out, size, p, s);
}

CUresult cuMemFreeAsync(CUdeviceptr at, CUstream s)
{
	CUresult r = CUDA_SUCCESS;
	int i;

	(void)s;
	pthread_mutex_lock(&lock);
	i = slot_of(at);
	if (i < 0) {
		r = CUDA_ERROR_INVALID_VALUE;
	} else if (slots[i].kind == ASYNC) {
		if (late)
			slots[i].pool->late += slots[i].size;
		else
			slots[i].pool->used -= slots[i].size;
		slots[i].kind = FREE;
	} else {
		slots[i].kind = FREE;
		used[slots[i].device] -= slots[i].size;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

/* Only the default pools let go by themselves. */
void fake_synchronised(void)
{
	pthread_mutex_lock(&lock);
	for (int d = 0; d < DEVICES; d++) {
		defaults[d].used -= defaults[d].late;
		defaults[d].late = 0;
		shrink(&defaults[d], defaults[d].threshold);
	}
	pthread_mutex_unlock(&lock);
}

/* ---- memory of graphs --------------------------------------------------------- */

CUresult cuGraphAddMemAllocNode(CUgraphNode *node, CUgraph g, const CUgraphNode *d, size_t n, CUDA_MEM_ALLOC_NODE_PARAMS *params)
{
	(void)node, (void)g, (void)d, (void)n;
	graph_size = params->bytesize;
	params->dptr = address(SLOTS - 1);
	return CUDA_SUCCESS;
}

void fake_graph_launched(void)
{
	pthread_mutex_lock(&lock);
	if (graph_reserved < graph_size && reserve(0, graph_size - graph_reserved))
		graph_reserved = graph_size;
	pthread_mutex_unlock(&lock);
}

CUresult cuDeviceGetGraphMemAttribute(CUdevice d, CUgraphMem_attribute a, void *value)
{
	*(cuuint64_t *)value = d == 0 && a == CU_GRAPH_MEM_ATTR_RESERVED_MEM_CURRENT ? graph_reserved : 0;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGraphMemTrim(CUdevice d)
{
	if (d != 0 || pinned)
		return CUDA_SUCCESS;
	pthread_mutex_lock(&lock);
	used[0] -= graph_reserved;
	graph_reserved = 0;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

/* ---- physical memory with a handle --------------------------------------------- */

CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
	int device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE ? prop->location.id : -1;
	CUresult r = CUDA_ERROR_OUT_OF_MEMORY;

	(void)flags;
	if (fails)
		return fails;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < 256; i++) {
		if (physical[i].handles || physical[i].maps || (device >= 0 && !reserve(device, size)))
			continue;
		physical[i].handles = 1;
		physical[i].size = size;
		physical[i].device = device;
		*out = (CUmemGenericAllocationHandle)(i + 1);
		r = CUDA_SUCCESS;
		break;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

/* Under the lock. */
static void put(int i)
{
	if (!physical[i].handles && !physical[i].maps && physical[i].device >= 0)
		used[physical[i].device] -= physical[i].size;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle h)
{
	int i = (int)h - 1;

	if (fails)
		return fails;
	pthread_mutex_lock(&lock);
	if (i < 0 || i >= 256 || !physical[i].handles) {
		pthread_mutex_unlock(&lock);
		return CUDA_ERROR_INVALID_VALUE;
	}
	physical[i].handles--;
	put(i);
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle h, unsigned long long flags)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;
	int p = (int)h - 1;

	(void)offset, (void)flags;
	if (fails)
		return fails;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < 256 && p >= 0 && p < 256 && physical[p].handles; i++) {
		if (maps[i].size)
			continue;
		maps[i].at = at;
		maps[i].size = size;
		maps[i].physical = p;
		physical[p].maps++;
		r = CUDA_SUCCESS;
		break;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

CUresult cuMemUnmap(CUdeviceptr at, size_t size)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;

	if (fails)
		return fails;
	pthread_mutex_lock(&lock);
	for (int i = 0; i < 256; i++) {
		if (!maps[i].size || maps[i].at < at || maps[i].at >= at + size)
			continue;
		maps[i].size = 0;
		physical[maps[i].physical].maps--;
		put(maps[i].physical);
		r = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&lock);
	return r;
}

CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
	CUresult r = CUDA_ERROR_INVALID_VALUE;
	CUdeviceptr at = (CUdeviceptr)(uintptr_t)address;

	pthread_mutex_lock(&lock);
	for (int i = 0; i < 256; i++) {
		if (!maps[i].size || at < maps[i].at || at >= maps[i].at + maps[i].size)
			continue;
		physical[maps[i].physical].handles++;
		*out = (CUmemGenericAllocationHandle)(maps[i].physical + 1);
		r = CUDA_SUCCESS;
	}
	pthread_mutex_unlock(&lock);
	return r;
}
