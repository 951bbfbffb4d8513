/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Random allocations of every kind on the simulated GPU. At rest the Go test
 * compares the ledger with what the driver itself says is in use: nobody else is
 * on this GPU.
 *
 *     reconcile SEED THREADS LIMIT    (in MiB; 0: it may fail for other reasons)
 */
#define VGPU_CUDA_ABI_EXPORTS
#include "test.h"

#include <stdbool.h>

#define MIB   ((size_t)1 << 20)
#define UNIT  ((size_t)64 << 10)   /* far above what the driver rounds up to */
#define GRAIN ((size_t)2 << 20)    /* of physical memory */
#define SPACE ((size_t)64 << 20)
#define SLOTS 6
#define MOVES 400
#define ROUND 512u                 /* what the simulated driver rounds up to */
#define LEVELS 3u                  /* of a mipmap that are not a multiple of that */

#define SAID(r) CHECK((r) == CUDA_SUCCESS || (r) == CUDA_ERROR_OUT_OF_MEMORY)

static CUresult (*real_info)(size_t *, size_t *);
static size_t base, limit;         /* of the driver: in use with one context */
static int threads;

struct worker {
	unsigned random;
	CUcontext own;             /* current, and made anew now and then */
	CUdeviceptr plain[SLOTS], async[SLOTS], space;
	CUarray array[SLOTS];
	CUmipmappedArray mipmap[SLOTS];
	CUmemoryPool pool;
	CUmemGenericAllocationHandle handle[SLOTS];
	unsigned handles[SLOTS];   /* how often it was given out */
	bool mapped[SLOTS];        /* at its place in space */
	size_t size[SLOTS];        /* of a handle, and of its mapping */
};

static unsigned any(struct worker *w, unsigned n)
{
	return (unsigned)rand_r(&w->random) % n;
}

static size_t used(void)
{
	size_t free, total;

	OK(real_info(&free, &total));
	return total - free;
}

/* Whoever is alone knows whether it was refused what is there. */
static bool got(CUresult r, size_t bytes)
{
	SAID(r);
	if (r != CUDA_SUCCESS && threads == 1 && limit && used() - base + bytes <= limit) {
		fprintf(stderr, "%zu bytes were refused, of %zu only %zu are in use\n", bytes, limit, used() - base);
		exit(1);
	}
	return r == CUDA_SUCCESS;
}

static void plain(struct worker *w, int i)
{
	size_t bytes = (1 + any(w, 300)) * UNIT, pitch;
	CUresult r;

	if (w->plain[i]) {
		OK(any(w, 4) ? cuMemFree_v2(w->plain[i]) : cuMemFreeAsync(w->plain[i], NULL));
		w->plain[i] = 0;
		return;
	}
	switch (any(w, 4)) {
	case 0:
		r = cuMemAllocManaged(&w->plain[i], bytes, CU_MEM_ATTACH_GLOBAL);
		break;
	case 1:
		r = cuMemAllocPitch_v2(&w->plain[i], &pitch, 1 + any(w, 2048), bytes / 2048, 4);
		bytes = bytes / 2048 * 2048;
		break;
	default:
		r = cuMemAlloc_v2(&w->plain[i], bytes);
	}
	if (!got(r, bytes))
		w->plain[i] = 0;
}

static void async(struct worker *w, int i)
{
	size_t bytes = (1 + any(w, 100)) * UNIT;
	CUresult r;

	if (w->async[i]) {
		OK(any(w, 4) ? cuMemFreeAsync(w->async[i], NULL) : cuMemFree_v2(w->async[i]));
		w->async[i] = 0;
		return;
	}
	r = any(w, 2) ? cuMemAllocAsync(&w->async[i], bytes, NULL) : cuMemAllocFromPoolAsync(&w->async[i], bytes, w->pool, NULL);
	SAID(r); /* a pool takes more than that */
	if (r != CUDA_SUCCESS)
		w->async[i] = 0;
}

static void array(struct worker *w, int i)
{
	CUDA_ARRAY3D_DESCRIPTOR d = {
		.Width = 512, .Height = 64 + any(w, 512), .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1u << any(w, 3),
	};
	size_t bytes;

	if (w->array[i]) {
		OK(cuArrayDestroy(w->array[i]));
		w->array[i] = NULL;
		return;
	}
	if (any(w, 2)) {
		d.Depth = 6;
		d.Flags = CUDA_ARRAY3D_LAYERED;
	}
	bytes = d.Width * d.Height * (d.Depth ? d.Depth : 1) * 4 * d.NumChannels;
	if (!got(cuArray3DCreate_v2(&w->array[i], &d), bytes))
		w->array[i] = NULL;
}

static void mipmap(struct worker *w, int i)
{
	CUDA_ARRAY3D_DESCRIPTOR d = { .Width = 256, .Height = 256, .Format = CU_AD_FORMAT_HALF, .NumChannels = 4 };
	unsigned levels = 1 + any(w, 9);
	size_t bytes = LEVELS * ROUND;

	if (w->mipmap[i]) {
		OK(cuMipmappedArrayDestroy(w->mipmap[i]));
		w->mipmap[i] = NULL;
		return;
	}
	for (unsigned level = 0; level < levels; level++)
		bytes += (256u >> level) * (256u >> level) * 8;
	if (!got(cuMipmappedArrayCreate(&w->mipmap[i], &d, levels), bytes))
		w->mipmap[i] = NULL;
}

static CUdeviceptr place(struct worker *w, int i)
{
	return w->space + (size_t)i * (SPACE / SLOTS / GRAIN * GRAIN);
}

/* Handles and mappings, in any order. */
static void physical(struct worker *w, int i)
{
	CUmemAllocationProp prop = {
		.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
	};
	CUmemGenericAllocationHandle handle;

	if (!w->handles[i] && !w->mapped[i]) {
		w->size[i] = (1 + any(w, 4)) * GRAIN;
		w->handles[i] = got(cuMemCreate(&w->handle[i], w->size[i], &prop, 0), w->size[i]);
		return;
	}
	switch (any(w, 3)) {
	case 0:
		if (!w->mapped[i] && w->handles[i]) {
			OK(cuMemMap(place(w, i), w->size[i], 0, w->handle[i], 0));
			w->mapped[i] = true;
		} else if (w->mapped[i]) {
			CHECK(cuMemUnmap(place(w, i), w->size[i] / 2) != CUDA_SUCCESS || w->size[i] == 0);
			OK(cuMemUnmap(place(w, i), w->size[i]));
			w->mapped[i] = false;
		}
		break;
	case 1:
		if (w->mapped[i]) {
			OK(cuMemRetainAllocationHandle(&handle, (void *)(uintptr_t)(place(w, i) + any(w, 2) * GRAIN / 2)));
			CHECK(!w->handles[i] || handle == w->handle[i]);
			w->handle[i] = handle;
			w->handles[i]++;
		}
		break;
	default:
		if (w->handles[i]) {
			OK(cuMemRelease(w->handle[i]));
			w->handles[i]--;
		}
	}
}

/* All that is in a context ends with it. What is of a pool goes first: whether it
 * ends as well, drivers may see differently. */
static void renew(struct worker *w)
{
	for (int i = 0; i < SLOTS; i++)
		if (w->async[i])
			OK(cuMemFreeAsync(w->async[i], NULL));
	memset(w->async, 0, sizeof(w->async));
	OK(cuCtxSynchronize());
	OK(cuCtxDestroy_v2(w->own));
	memset(w->plain, 0, sizeof(w->plain));
	memset(w->array, 0, sizeof(w->array));
	memset(w->mipmap, 0, sizeof(w->mipmap));
	OK(cuCtxCreate_v2(&w->own, 0, 0));
}

static void make_pool(struct worker *w)
{
	CUmemPoolProps props = {
		.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
	};
	cuuint64_t keep = any(w, 2) ? UINT64_MAX : 0;

	OK(cuMemPoolCreate(&w->pool, &props));
	OK(cuMemPoolSetAttribute(w->pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &keep));
}

static void *work(void *arg)
{
	struct worker *w = arg;

	OK(cuCtxCreate_v2(&w->own, 0, 0));
	OK(cuMemAddressReserve(&w->space, SPACE, 0, 0, 0));
	make_pool(w);
	for (int n = 0; n < MOVES; n++) {
		int i = (int)any(w, SLOTS);

		switch (any(w, 12)) {
		case 0: case 1: case 2:
			plain(w, i);
			break;
		case 3: case 4: case 5:
			async(w, i);
			break;
		case 6:
			array(w, i);
			break;
		case 7:
			mipmap(w, i);
			break;
		case 8: case 9: case 10:
			physical(w, i);
			break;
		default:
			if (any(w, 2))
				OK(cuCtxSynchronize());
			else if (any(w, 8) == 0)
				renew(w);
			else
				OK(cuMemPoolTrimTo(w->pool, 0));
		}
	}
	OK(cuCtxSynchronize());
	return NULL;
}

static void *end(void *arg)
{
	struct worker *w = arg;

	OK(cuCtxSetCurrent(w->own));
	for (int i = 0; i < SLOTS; i++) {
		if (w->async[i])
			OK(cuMemFreeAsync(w->async[i], NULL));
		if (w->mapped[i])
			OK(cuMemUnmap(place(w, i), w->size[i]));
		while (w->handles[i]--)
			OK(cuMemRelease(w->handle[i]));
	}
	OK(cuCtxSynchronize());
	OK(cuMemPoolDestroy(w->pool));
	OK(cuCtxDestroy_v2(w->own));
	return NULL;
}

static void together(struct worker *w, void *(*what)(void *))
{
	pthread_t t[8];

	for (int i = 0; i < threads; i++)
		CHECK(pthread_create(&t[i], NULL, what, &w[i]) == 0);
	for (int i = 0; i < threads; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
}

/* Without what contexts cost: each is charged as overhead, by vgpud. */
static void at_rest(struct worker *w, size_t contexts)
{
	size_t free, total, rounded = 0;
	CUmemoryPool pool;

	for (int i = 0; i < threads; i++)
		for (int j = 0; j < SLOTS; j++)
			rounded += w[i].mipmap[j] ? LEVELS * ROUND : 0;
	OK(cuDeviceGetDefaultMemPool(&pool, 0));
	OK(cuMemPoolTrimTo(pool, 0));
	OK(cuMemGetInfo_v2(&free, &total)); /* pools are looked at */
	say("%zu %zu", used() - base - contexts, rounded);
	await();
}

int main(int argc, char **argv)
{
	struct worker w[8] = { 0 };
	CUcontext context;
	size_t before, cost;

	CHECK(argc == 4);
	threads = atoi(argv[2]);
	limit = (size_t)atoi(argv[3]) * MIB;
	real_info = (CUresult (*)(size_t *, size_t *))fake("cuMemGetInfo_v2");
	for (int i = 0; i < threads; i++)
		w[i].random = (unsigned)(atoi(argv[1]) * 8 + i);
	OK(cuInit(0));
	OK(cuCtxCreate_v2(&context, 0, 0));
	before = used();
	OK(cuCtxCreate_v2(&w[0].own, 0, 0));
	cost = used() - before;
	OK(cuCtxDestroy_v2(w[0].own));
	OK(cuCtxSetCurrent(context));
	base = before + (threads == 1 ? cost : 0);
	say("ready");
	await();
	together(w, work);
	at_rest(w, threads == 1 ? 0 : (size_t)threads * cost);
	together(w, end);
	memset(w, 0, sizeof(w));
	base = before;
	at_rest(w, 0);
	say("done");
	return 0;
}
