/* SPDX-License-Identifier: Apache-2.0 */
/* mode: prints the compute mode of the first device, and what a context on it gives. */
#include "test.h"

int main(void)
{
	CUcontext ctx;
	int mode;

	OK(cuInit(0));
	OK(cuDeviceGetAttribute(&mode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, 0));
	printf("%d %d\n", mode, cuCtxCreate(&ctx, NULL, 0, 0));
	return 0;
}
