/* SPDX-License-Identifier: Apache-2.0 */
/* No GPU is to be had; with an argument, not even their number is told. */
#include "test.h"

int main(int argc, char **argv)
{
	unsigned n = 77;
	nvmlDevice_t d;

	OK(nvmlInit_v2());
	(void)argv;
	if (argc > 1)
		CHECK(nvmlDeviceGetCount_v2(&n) != NVML_SUCCESS && nvmlDeviceGetCount(&n) != NVML_SUCCESS);
	else
		OK(nvmlDeviceGetCount_v2(&n));
	say("count %u", n);
	say("%d %d", nvmlDeviceGetHandleByIndex_v2(0, &d), nvmlDeviceGetHandleByIndex_v2(0, &d));
	say("done");
	return 0;
}
