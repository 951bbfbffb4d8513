/* SPDX-License-Identifier: Apache-2.0 */
/* vmm KERNELS: physical memory, addresses, and which of them work may use. */
#include "test.h"
#include <setjmp.h>
#include <signal.h>

static const CUmemAllocationProp on_device = {
	.type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 },
};
static const CUmemAccessDesc both = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 }, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
static sigjmp_buf back;
static size_t page;

static size_t room(void)
{
	size_t n, total;

	OK(cuMemGetInfo(&n, &total));
	return n;
}

static void on_fault(int sig)
{
	siglongjmp(back, sig);
}

/* A program that reads device memory faults. */
static bool faults(CUdeviceptr p)
{
	if (sigsetjmp(back, 1))
		return true;
	(void)*(volatile char *)(uintptr_t)p;
	return false;
}

static void wrong_arguments(void)
{
	CUmemGenericAllocationHandle h;
	CUmemAllocationProp p = on_device;
	CUdeviceptr va;

	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&h, page + 1, &on_device, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&h, 0, &on_device, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&h, page, &on_device, 1));
	p.location.id = 99;
	GIVES(CUDA_ERROR_INVALID_DEVICE, cuMemCreate(&h, page, &p, 0));
	p = on_device;
	p.type = CU_MEM_ALLOCATION_TYPE_INVALID;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemCreate(&h, page, &p, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&va, page + 1, 0, 0, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAddressReserve(&va, page, 3, 0, 0));
	OK(cuMemAddressReserve(&va, 4 * page, 0, 0, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(va, page));
	OK(cuMemCreate(&h, page, &on_device, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemMap(va, 2 * page, 0, h, 0)); /* more than there is */
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemMap(va, page, page, h, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemMap(va + 4 * page, page, 0, h, 0)); /* not reserved */
	OK(cuMemMap(va, page, 0, h, 0));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemMap(va, page, 0, h, 0)); /* taken */
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemSetAccess(va, 2 * page, &both, 1)); /* a hole */
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemUnmap(va, 2 * page));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(va));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAddressFree(va, 4 * page)); /* mapped */
	OK(cuMemUnmap(va, page));
	OK(cuMemRelease(h));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemRelease(h));
	OK(cuMemAddressFree(va, 4 * page));
}

/* Counted until both the handle and the mapping are gone. */
static void counted(void)
{
	CUmemGenericAllocationHandle h, again;
	CUdeviceptr va;
	size_t before = room(), n = 4 * page;

	OK(cuMemAddressReserve(&va, n, 0, 0, 0));
	CHECK(room() == before);
	OK(cuMemCreate(&h, n, &on_device, 0));
	CHECK(before - room() == n);
	OK(cuMemMap(va, n, 0, h, 0));
	OK(cuMemRelease(h));
	CHECK(before - room() == n);
	OK(cuMemRetainAllocationHandle(&again, (void *)(uintptr_t)(va + 5)));
	OK(cuMemUnmap(va, n));
	CHECK(before - room() == n);
	OK(cuMemRelease(again));
	CHECK(room() == before);
	OK(cuMemAddressFree(va, n));
	CUmemGenericAllocationHandle all[2];
	GIVES(CUDA_ERROR_OUT_OF_MEMORY, cuMemCreate(&all[0], (before / page + 1) * page, &on_device, 0));
}

/* Two mappings side by side are one piece of memory for work. */
static void used(void)
{
	CUmemGenericAllocationHandle h[2];
	CUfunction fill = function("fill_u32");
	CUdeviceptr va, second;
	unsigned got[4], n = (unsigned)(2 * page / 4);
	unsigned long long flags;
	size_t size;

	OK(cuMemAddressReserve(&va, 2 * page, 0, 0, 0));
	for (int i = 0; i < 2; i++) {
		OK(cuMemCreate(&h[i], page, &on_device, 0));
		OK(cuMemMap(va + (size_t)i * page, page, 0, h[i], 0));
	}
	OK(cuMemGetAccess(&flags, &both.location, va));
	CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_NONE);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(va, 1, page)); /* no access yet */
	OK(cuMemSetAccess(va, 2 * page, &both, 1));
	OK(cuMemGetAccess(&flags, &both.location, va + page));
	CHECK(flags == CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
	launch(fill, NULL, n / 256, 256, ARGS(&va, &(unsigned){ 7 }, &n));
	OK(cuMemcpyDtoH(got, va + page - 8, 16));
	CHECK(got[0] == 7 && got[3] == 7);
	OK(cuMemsetD32(va + page - 8, 9, 4));
	OK(cuMemcpyDtoH(got, va + page - 12, 16));
	CHECK(got[0] == 7 && got[1] == 9 && got[3] == 9);
	CHECK(faults(va) && faults(va + page));
	OK(cuMemGetAddressRange(&second, &size, va + page + 1));
	CHECK(second == va + page && size == page);
	OK(cuPointerGetAttribute(&second, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, va + page));
	CHECK(second == va);

	/* The same memory at another address. */
	CUdeviceptr other;
	OK(cuMemAddressReserve(&other, page, 0, 0, 0));
	OK(cuMemMap(other, page, 0, h[1], 0));
	OK(cuMemSetAccess(other, page, &both, 1));
	OK(cuMemsetD32(other, 11, 4));
	OK(cuMemcpyDtoH(got, va + page, 16));
	CHECK(got[0] == 11 && got[3] == 11);

	OK(cuMemUnmap(va, 2 * page));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemsetD8(va, 1, 4));
	unsigned mapped = 1;
	OK(cuPointerGetAttribute(&mapped, CU_POINTER_ATTRIBUTE_MAPPED, va));
	CHECK(mapped == 0);
	/* What was unmapped is still there. */
	OK(cuMemMap(va, page, 0, h[1], 0));
	OK(cuMemSetAccess(va, page, &both, 1));
	OK(cuMemcpyDtoH(got, va, 16));
	CHECK(got[0] == 11);
	OK(cuMemUnmap(va, page));
	OK(cuMemUnmap(other, page));
	OK(cuMemAddressFree(va, 2 * page));
	OK(cuMemAddressFree(other, page));
	OK(cuMemRelease(h[0]));
	OK(cuMemRelease(h[1]));
}

/* Host memory costs nothing of the GPU, and the program may read it where it mapped it. */
static void on_host(void)
{
	CUmemAllocationProp prop = { .type = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { .type = CU_MEM_LOCATION_TYPE_HOST_NUMA, .id = 0 } }, got;
	CUmemAccessDesc desc[2] = { both, { .location = prop.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE } };
	CUmemGenericAllocationHandle h;
	CUdeviceptr va;
	size_t before = room();

	OK(cuMemCreate(&h, page, &prop, 0));
	CHECK(room() == before);
	OK(cuMemGetAllocationPropertiesFromHandle(&got, h));
	CHECK(got.location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA);
	OK(cuMemAddressReserve(&va, page, 0, 0, 0));
	OK(cuMemMap(va, page, 0, h, 0));
	OK(cuMemSetAccess(va, page, desc, 2));
	OK(cuMemsetD32(va, 5, 4));
	OK(cuCtxSynchronize());
	CHECK(*(volatile unsigned *)(uintptr_t)(va + 12) == 5);
	*(volatile unsigned *)(uintptr_t)va = 6;
	unsigned word;
	OK(cuMemcpyDtoH(&word, va, 4));
	CHECK(word == 6);
	OK(cuMemUnmap(va, page));
	CHECK(faults(va));
	OK(cuMemRelease(h));
	OK(cuMemAddressFree(va, page));
	CHECK(room() == before);
}

/* Last: a kernel without access loses the context. */
static void no_access(void)
{
	CUmemGenericAllocationHandle h;
	CUfunction fill = function("fill_u32");
	CUdeviceptr va;

	OK(cuMemCreate(&h, page, &on_device, 0));
	OK(cuMemAddressReserve(&va, page, 0, 0, 0));
	OK(cuMemMap(va, page, 0, h, 0));
	launch(fill, NULL, 1, 4, ARGS(&va, &(unsigned){ 7 }, &(unsigned){ 4 }));
	GIVES(CUDA_ERROR_ILLEGAL_ADDRESS, cuCtxSynchronize());
}

int main(int argc, char **argv)
{
	begin(argc, argv, 0);
	OK(cuMemGetAllocationGranularity(&page, &on_device, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
	CHECK(page >= 4096 && (page & (page - 1)) == 0);
	signal(SIGSEGV, on_fault);
	wrong_arguments();
	counted();
	used();
	on_host();
	no_access();
	return 0;
}
