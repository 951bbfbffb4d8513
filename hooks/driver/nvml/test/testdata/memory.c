/* SPDX-License-Identifier: Apache-2.0 */
/* Memory, in both forms, by both ways to ask. */
#include "test.h"

#define V2 (sizeof(nvmlMemory_v2_t) | 2u << 24)

int main(void)
{
	struct {
		nvmlMemory_t m;
		uint64_t guard;
	} one = { .guard = 0xfeed };
	nvmlMemory_v2_t two = { .version = V2 };
	nvmlDevice_t d;

	OK(nvmlInit_v2());
	d = device(0);
	OK(nvmlDeviceGetMemoryInfo(d, &one.m));
	CHECK(one.guard == 0xfeed); /* the old form is shorter */
	OK(nvmlDeviceGetMemoryInfo_v2(d, &two));
	say("v1 %llu %llu %llu", one.m.total, one.m.used, one.m.free);
	say("v2 %llu %llu %llu", two.total, two.used, two.free);
	CHECK(two.total == two.used + two.free + two.reserved && two.version == V2);
	for (unsigned v = 0; v < 4; v++) {
		two.version = (sizeof(two) + (v == 0)) | (v ? v + (v == 2) : 2) << 24;
		two.total = 7;
		IS(NVML_ERROR_ARGUMENT_VERSION_MISMATCH, nvmlDeviceGetMemoryInfo_v2(d, &two));
		CHECK(two.total == 7);
	}
	IS(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetMemoryInfo(d, NULL));
	IS(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetMemoryInfo_v2(d, NULL));
	d.handle = (void *)&one;
	IS(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetMemoryInfo(d, &one.m));
	say("done");
	return 0;
}
