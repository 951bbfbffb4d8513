/* SPDX-License-Identifier: Apache-2.0 */
/* Says what is used, and of how many processes, each time that it is asked. */
#include "test.h"

int main(void)
{
	nvmlMemory_t m;
	unsigned n;
	nvmlReturn_t r;

	OK(nvmlInit_v2());
	say("initialised");
	for (;;) {
		char line[64];

		if (!fgets(line, sizeof(line), stdin))
			break;
		OK(nvmlDeviceGetMemoryInfo(device(0), &m));
		n = 0;
		r = nvmlDeviceGetComputeRunningProcesses_v3(device(0), &n, NULL);
		CHECK(r == NVML_SUCCESS || r == NVML_ERROR_INSUFFICIENT_SIZE);
		say("used %llu by %u", m.used, n);
	}
	say("done");
	return 0;
}
