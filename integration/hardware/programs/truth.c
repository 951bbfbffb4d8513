/* SPDX-License-Identifier: Apache-2.0 */
/*
 * truth: what the driver says of memory, before and after all of it was taken.
 *
 *   truth [--piece BYTES] [--most BYTES]
 *
 * Prints "device NAME", "info FREE TOTAL DEVICE", allocates pieces until there is no
 * more, or --most, "taken BYTES RESULT", "info ..." again, "holds", and waits for a
 * line with all of it in its hands. Then it frees all and prints "info ...".
 */
#include "stamps.h"

#include <stdio.h>
#include <stdlib.h>

#define PIECES 65536

static CUdevice device;

static void say_info(void)
{
	size_t free, total, whole;

	CU(cuMemGetInfo(&free, &total));
	CU(cuDeviceTotalMem(&whole, device));
	printf("info %zu %zu %zu\n", free, total, whole);
}

int main(int argc, char **argv)
{
	uint64_t piece = option_u64(argc, argv, "--piece", 64 << 20), taken = 0;
	uint64_t most = option_u64(argc, argv, "--most", UINT64_MAX);
	CUdeviceptr *pieces = calloc(PIECES, sizeof(*pieces));
	CUresult r = CUDA_SUCCESS;
	char name[256];
	int n = 0;

	if (!pieces || !piece)
		fail("--piece must be 1 or more");
	open_device();
	CU(cuDeviceGet(&device, 0));
	CU(cuDeviceGetName(name, sizeof(name), device));
	printf("device %s\n", name);
	say_info();
	while (n < PIECES && taken + piece <= most && (r = cuMemAlloc(&pieces[n], piece)) == CUDA_SUCCESS) {
		taken += piece;
		n++;
	}
	printf("taken %llu %d\n", (unsigned long long)taken, (int)r);
	say_info();
	say_and_await("holds");
	while (n > 0)
		CU(cuMemFree(pieces[--n]));
	say_info();
	printf("done\n");
	return 0;
}
