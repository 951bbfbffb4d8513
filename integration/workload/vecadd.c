/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vecadd: adds two vectors on the GPU and checks every element.
 *
 *   vecadd [--n N] [--rounds N] [--kernels DIR]
 *
 * Copies by default stream and by stream, a memset, a kernel. Prints one line
 * of JSON, with the device that it saw; ends with status 1 if a value is wrong.
 */
#include "common.h"

#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	uint64_t n = option_u64(argc, argv, "--n", 100000);
	uint64_t rounds = option_u64(argc, argv, "--rounds", 3);
	size_t size = n * sizeof(float);
	float *a = malloc(size), *b = malloc(size), *c = malloc(size);
	CUdeviceptr da, db, dc;
	CUfunction add;
	CUstream stream;
	CUdevice device;
	CUuuid uuid;
	char name[128];
	int count;

	if (!n || n > UINT32_MAX || !a || !b || !c)
		fail("--n must be between 1 and %u", UINT32_MAX);
	open_device();
	add = load_kernel(argc, argv, "vec_add_f32");
	CU(cuDeviceGetCount(&count));
	CU(cuDeviceGet(&device, 0));
	CU(cuDeviceGetName(name, sizeof(name), device));
	CU(cuDeviceGetUuid(&uuid, device));
	CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
	CU(cuMemAlloc(&da, size));
	CU(cuMemAlloc(&db, size));
	CU(cuMemAlloc(&dc, size));
	for (uint64_t round = 0; round < rounds; round++) {
		uint32_t elements = (uint32_t)n;
		void *params[] = { &da, &db, &dc, &elements };

		for (uint64_t i = 0; i < n; i++) {
			a[i] = (float)(i % 1000);
			b[i] = (float)(round * 1000);
			c[i] = -1;
		}
		CU(cuMemcpyHtoD(da, a, size));
		CU(cuMemcpyHtoDAsync(db, b, size, stream));
		CU(cuMemsetD32Async(dc, 0, n, stream));
		CU(cuLaunchKernel(add, (unsigned)((n + 255) / 256), 1, 1, 256, 1, 1, 0, stream, params, NULL));
		CU(cuMemcpyDtoHAsync(c, dc, size, stream));
		CU(cuStreamSynchronize(stream));
		for (uint64_t i = 0; i < n; i++)
			if (c[i] != a[i] + b[i])
				fail("round %llu: element %llu is %g, not %g", (unsigned long long)round,
				     (unsigned long long)i, (double)c[i], (double)(a[i] + b[i]));
	}
	CU(cuMemFree(da));
	CU(cuMemFree(db));
	CU(cuMemFree(dc));
	printf("{\"program\":\"vecadd\",\"ok\":true,\"n\":%llu,\"devices\":%d,\"name\":\"%s\",\"uuid\":\"",
	       (unsigned long long)n, count, name);
	for (int i = 0; i < 16; i++)
		printf("%02x", (unsigned char)uuid.bytes[i]);
	printf("\"}\n");
	return 0;
}
