/* SPDX-License-Identifier: Apache-2.0 */
/* pools KERNELS: what pools keep, give again, and give back. */
#include "test.h"

static const CUmemPoolProps on_device = {
	.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
};

static cuuint64_t get(CUmemoryPool pool, CUmemPool_attribute a)
{
	cuuint64_t v = 0;

	OK(cuMemPoolGetAttribute(pool, a, &v));
	return v;
}

static void set(CUmemoryPool pool, CUmemPool_attribute a, cuuint64_t v)
{
	OK(cuMemPoolSetAttribute(pool, a, &v));
}

static size_t room(void)
{
	size_t n, total;

	OK(cuMemGetInfo(&n, &total));
	return n;
}

static void threshold(CUmemoryPool pool, CUstream s)
{
	size_t before = room(), n = 8 << 20;
	CUdeviceptr p, q;

	set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, UINT64_MAX);
	OK(cuMemAllocFromPoolAsync(&p, n, pool, s));
	CHECK(get(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == n);
	CHECK(get(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= n);
	CHECK(before - room() == get(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT));
	OK(cuMemsetD8Async(p, 1, n, s));
	OK(cuMemFreeAsync(p, s));
	OK(cuStreamSynchronize(s));
	CHECK(get(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
	CHECK(before - room() >= n); /* kept */
	OK(cuMemAllocFromPoolAsync(&q, n, pool, s));
	OK(cuMemFreeAsync(q, s));
	OK(cuMemPoolTrimTo(pool, 0));
	set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 0);
	OK(cuStreamSynchronize(s));
	CHECK(get(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);
	CHECK(room() == before);
	CHECK(get(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == n);
	set(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, 0);
	CHECK(get(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH) == 0);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &(cuuint64_t){ 5 }));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &(cuuint64_t){ 0 }));
}

/* Freed and taken again in one stream: no more memory than once, though nothing has run yet. */
static void again_in_one_stream(CUmemoryPool pool, CUstream s)
{
	size_t n = 40 << 20, free, total;
	CUdeviceptr p;

	OK(cuMemGetInfo(&free, &total));
	hold(s);
	for (size_t i = 0; i < free / n + 2; i++) {
		OK(cuMemAllocFromPoolAsync(&p, n, pool, s));
		OK(cuMemsetD8Async(p, (unsigned char)i, n, s));
		OK(cuMemFreeAsync(p, s));
	}
	let_go();
	OK(cuStreamSynchronize(s));
}

/* Another stream does not get what is freed only later. */
static void not_in_another(CUmemoryPool pool, CUstream a, CUstream b)
{
	CUdeviceptr p, q;

	set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, UINT64_MAX);
	OK(cuMemAllocFromPoolAsync(&p, 1 << 20, pool, a));
	hold(a);
	OK(cuMemFreeAsync(p, a));
	OK(cuMemAllocFromPoolAsync(&q, 1 << 20, pool, b));
	CHECK(p != q);
	let_go();
	OK(cuCtxSynchronize());
	OK(cuMemFree(q)); /* an ordinary free takes it too */
	set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 0);
	OK(cuCtxSynchronize());
	CHECK(get(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);
}

/* Of more than the threshold only what is above it goes back. */
static void part_of_it(CUmemoryPool pool, CUstream s)
{
	size_t n = 40 << 20;
	CUdeviceptr p[2];

	set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, n);
	for (int i = 0; i < 2; i++)
		OK(cuMemAllocFromPoolAsync(&p[i], n, pool, s));
	cuuint64_t both = get(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
	for (int i = 0; i < 2; i++)
		OK(cuMemFreeAsync(p[i], s));
	OK(cuStreamSynchronize(s));
	CHECK(get(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= n && get(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) < both);
	set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, 0);
	OK(cuStreamSynchronize(s));
	CHECK(get(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) == 0);
}

static void current(CUmemoryPool own)
{
	CUmemoryPool first, got;
	CUmemAccess_flags flags;
	CUdeviceptr p;

	OK(cuDeviceGetDefaultMemPool(&first, 0));
	OK(cuDeviceGetMemPool(&got, 0));
	CHECK(got == first);
	OK(cuDeviceSetMemPool(0, own));
	OK(cuMemAllocAsync(&p, 1000, NULL));
	OK(cuPointerGetAttribute(&got, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p));
	CHECK(got == own && get(own, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) > 0 && get(first, CU_MEMPOOL_ATTR_USED_MEM_CURRENT) == 0);
	OK(cuMemPoolGetAccess(&flags, own, &(CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 }));
	CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolDestroy(first));
	/* A pool that goes before its memory: the default is current again, the memory is good. */
	OK(cuMemPoolDestroy(own));
	OK(cuDeviceGetMemPool(&got, 0));
	CHECK(got == first);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPoolTrimTo(own, 0));
	OK(cuMemsetD8(p, 3, 1000));
	OK(cuMemFreeAsync(p, NULL));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFreeAsync(p, NULL));
	OK(cuCtxSynchronize());
}

/* What a pool keeps is given up before an allocation fails. */
static void in_need(CUmemoryPool pool)
{
	size_t n = room() / 4 * 3 / 512 * 512;
	CUdeviceptr p;

	set(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, UINT64_MAX);
	OK(cuMemAllocFromPoolAsync(&p, n, pool, NULL));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAlloc(&p, n));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocFromPoolAsync(&p, n, pool, NULL));
	OK(cuMemFreeAsync(p, NULL));
	OK(cuCtxSynchronize());
	CHECK(get(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT) >= n);
	OK(cuMemAlloc(&p, n));
	OK(cuMemFree(p));
}

int main(int argc, char **argv)
{
	CUmemPoolProps props = on_device;
	CUmemoryPool pool;
	CUstream a, b;
	CUdeviceptr p;

	begin(argc, argv, 0);
	OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
	hold_word();
	size_t before = room();
	OK(cuMemPoolCreate(&pool, &props));
	threshold(pool, a);
	again_in_one_stream(pool, a);
	not_in_another(pool, a, b);
	part_of_it(pool, a);
	in_need(pool);
	current(pool);
	CHECK(room() == before);

	props.maxSize = 64 << 20;
	OK(cuMemPoolCreate(&pool, &props));
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemAllocFromPoolAsync(&p, 65 << 20, pool, a));
	OK(cuMemPoolDestroy(pool));
	props.location.id = 99;
	GIVES(CUDA_ERROR_INVALID_DEVICE, cuMemPoolCreate(&pool, &props));
	return 0;
}
