/* SPDX-License-Identifier: Apache-2.0 */
/* A handle of a GPU that the vGPU is not on any more. */
#include "test.h"

int main(void)
{
	nvmlMemory_t m;
	nvmlDevice_t d;

	OK(nvmlInit_v2());
	d = device(0);
	say("%d", nvmlDeviceGetMemoryInfo(d, &m));
	await();
	say("%d", nvmlDeviceGetMemoryInfo(d, &m));
	await();
	say("%d %d", nvmlDeviceGetMemoryInfo(d, &m), nvmlDeviceGetMemoryInfo(device(0), &m));
	say("done");
	return 0;
}
