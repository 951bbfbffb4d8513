/* SPDX-License-Identifier: Apache-2.0 */
/* managed KERNELS: advice and prefetches of managed memory, and how it is told. */
#include "test.h"

#define PAGE 65536ul

static int get(CUmem_range_attribute a, CUdeviceptr p, size_t n)
{
	int v = 77;

	OK(cuMemRangeGetAttribute(&v, sizeof(v), a, p, n));
	return v;
}

int main(int argc, char **argv)
{
	CUmemLocation device = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0 }, host = { .type = CU_MEM_LOCATION_TYPE_HOST };
	CUdeviceptr p, q;
	CUstream s;
	size_t n = 8 * PAGE;
	int by[3];

	begin(argc, argv, 0);
	OK(cuStreamCreate(&s, 0));
	OK(cuMemAllocManaged(&p, n, CU_MEM_ATTACH_GLOBAL));
	OK(cuMemAlloc(&q, n));
	CHECK(get(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, n) == 0);
	CHECK(get(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, p, n) == CU_DEVICE_INVALID);
	CHECK(get(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, p, n) == CU_DEVICE_INVALID);

	/* Of a part of it: the whole has it only when all pages have. */
	OK(cuMemAdvise(p, n / 2, CU_MEM_ADVISE_SET_READ_MOSTLY, device));
	CHECK(get(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, n / 2) == 1);
	CHECK(get(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, n) == 0);
	OK(cuMemAdvise(p + n / 2, n / 2, CU_MEM_ADVISE_SET_READ_MOSTLY, device));
	CHECK(get(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, n) == 1);
	OK(cuMemAdvise(p + PAGE, PAGE, CU_MEM_ADVISE_UNSET_READ_MOSTLY, device));
	CHECK(get(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, n) == 0);
	CHECK(get(CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p + 2 * PAGE, n - 2 * PAGE) == 1);

	OK(cuMemAdvise(p, n, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, host));
	CHECK(get(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, p, n) == CU_DEVICE_CPU);
	OK(cuMemAdvise(p, n, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device));
	CHECK(get(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, p, n) == 0);
	CHECK(get(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION_TYPE, p, n) == CU_MEM_LOCATION_TYPE_DEVICE);
	OK(cuMemAdvise(p, n, CU_MEM_ADVISE_SET_ACCESSED_BY, device));
	OK(cuMemRangeGetAttribute(by, sizeof(by), CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, p, n));
	CHECK(by[0] == 0 && by[1] == CU_DEVICE_INVALID && by[2] == CU_DEVICE_INVALID);

	OK(cuMemPrefetchAsync(p, n, device, 0, s));
	CHECK(get(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, p, n) == 0);
	CUdeviceptr parts[2] = { p, p + n / 2 };
	size_t sizes[2] = { PAGE, PAGE }, first[2] = { 0, 1 };
	CUmemLocation to[2] = { host, device };
	OK(cuMemPrefetchBatchAsync(parts, sizes, 2, to, first, 2, 0, s));
	CHECK(get(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, p, PAGE) == CU_DEVICE_CPU);
	CHECK(get(CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION, p, n) == CU_DEVICE_INVALID);
	OK(cuStreamSynchronize(s));

	OK(cuStreamAttachMemAsync(s, p, 0, CU_MEM_ATTACH_SINGLE));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamAttachMemAsync(s, p, PAGE, CU_MEM_ATTACH_SINGLE));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuStreamAttachMemAsync(s, q, 0, CU_MEM_ATTACH_SINGLE));

	/* Two at once, and what is wrong. */
	void *data[2] = { &by[0], &by[1] };
	size_t each[2] = { 4, 4 };
	CUmem_range_attribute attrs[2] = { CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION };
	OK(cuMemRangeGetAttributes(data, each, attrs, 2, p, PAGE));
	CHECK(by[0] == 1 && by[1] == 0);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemRangeGetAttribute(by, 4, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, q, n));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemRangeGetAttribute(by, 3, CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, p, n));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemAdvise(q, n, CU_MEM_ADVISE_SET_READ_MOSTLY, device));
	first[1] = 0;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemPrefetchBatchAsync(parts, sizes, 2, to, first, 2, 0, s));
	device.id = 99;
	GIVES(CUDA_ERROR_INVALID_DEVICE, cuMemPrefetchAsync(p, n, device, 0, s));
	GIVES(CUDA_ERROR_INVALID_DEVICE, cuMemAdvise(p, n, CU_MEM_ADVISE_SET_PREFERRED_LOCATION, device));

	/* Advice goes with the memory. */
	OK(cuMemFree(p));
	OK(cuMemAllocManaged(&p, n, CU_MEM_ATTACH_GLOBAL));
	CHECK(get(CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION, p, n) == CU_DEVICE_INVALID);

	/* Registered memory that work may only read. */
	static char own[8192] __attribute__((aligned(4096)));
	unsigned flags;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemHostRegister(own, sizeof(own), 64));
	OK(cuMemHostRegister(own, sizeof(own), CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_READ_ONLY));
	GIVES(CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED, cuMemHostRegister(own, 4096, 0));
	OK(cuMemHostGetFlags(&flags, own));
	OK(cuMemcpyHtoD(q, own, 4096));
	OK(cuMemHostUnregister(own));
	GIVES(CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED, cuMemHostUnregister(own));
	return 0;
}
