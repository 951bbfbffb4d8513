/* SPDX-License-Identifier: Apache-2.0 */
/* v1 KERNELS: the calls of the age when a device pointer had 32 bits. */
#include "test.h"

/* The header's second names are those of today. */
#undef cuMemAlloc
#undef cuMemAllocHost
#undef cuMemAllocPitch
#undef cuMemFree
#undef cuMemGetAddressRange
#undef cuMemGetInfo

int main(int argc, char **argv)
{
	CUdeviceptr_v1 p, base;
	unsigned pitch, size, free0, free1, total;
	char data[16] = "fifteen letters", back[16] = "";

	begin(argc, argv, 0);
	OK(cuMemGetInfo(&free0, &total));
	CHECK(free0 > 0 && free0 <= total);
	OK(cuMemAlloc(&p, 1 << 20));
	OK(cuMemGetInfo(&free1, &total));
	CHECK(free0 - free1 == 1 << 20);
	OK(cuMemcpyHtoD_v2(p, data, 16));
	OK(cuMemcpyDtoH_v2(back, p, 16));
	CHECK(strcmp(data, back) == 0);
	OK(cuMemGetAddressRange(&base, &size, p + 100));
	CHECK(base == p && size == 1 << 20);
	OK(cuMemFree(p));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(p));
	OK(cuMemAllocPitch(&p, &pitch, 1000, 10, 4));
	CHECK(pitch >= 1000);
	OK(cuMemFree(p));
	void *host;
	OK(cuMemAllocHost(&host, 4096));
	OK(cuMemFreeHost(host));
	OK(cuMemGetInfo(&free1, &total));
	CHECK(free1 == free0);
	return 0;
}
