/* SPDX-License-Identifier: Apache-2.0 */
/* Over the fake NVML of four GPUs, of which the vGPU has the second and fourth:
 * no list leads to another. Argument: how many of the two are there. */
#include "test.h"

static void is(nvmlDevice_t d, unsigned b)
{
	char text[64], want[16];

	OK(nvmlDeviceGetUUID(d, text, sizeof(text)));
	snprintf(want, sizeof(want), "GPU-%02x%02x", b, b);
	CHECK(strncmp(text, want, strlen(want)) == 0);
}

int main(void)
{
	nvmlUUID_t uuid = { .version = sizeof(uuid) | 1u << 24, .type = 2 };
	nvmlUnit_t unit = { NULL };
	nvmlDevice_t d[8], out;
	nvmlUtilization_t u;
	unsigned n;

	OK(nvmlInit()); /* which calls nvmlInit_v2, once */
	is(device(0), 2);
	is(device(1), 4);
	OK(nvmlDeviceGetIndex(device(1), &n));
	CHECK(n == 1);
	IS(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetHandleByIndex_v2(2, &out));

	n = 0;
	OK(nvmlDeviceGetTopologyNearestGpus(device(0), NVML_TOPOLOGY_SYSTEM, &n, NULL));
	CHECK(n == 2);
	OK(nvmlDeviceGetTopologyNearestGpus(device(0), NVML_TOPOLOGY_SYSTEM, &n, d));
	CHECK(n == 2);
	is(d[0], 2);
	is(d[1], 4);
	n = UINT32_MAX;
	OK(nvmlSystemGetTopologyGpuSet(0, &n, d));
	CHECK(n == 2);
	n = 1;
	d[1].handle = NULL;
	OK(nvmlSystemGetTopologyGpuSet(0, &n, d));
	CHECK(n == 1 && !d[1].handle);
	is(d[0], 2);
	IS(NVML_ERROR_INVALID_ARGUMENT, nvmlSystemGetTopologyGpuSet(0, NULL, d));
	IS(NVML_ERROR_INVALID_ARGUMENT, nvmlSystemGetTopologyGpuSet(0, &n, NULL));
	n = 1;
	IS(NVML_ERROR_INSUFFICIENT_SIZE, nvmlUnitGetDevices(unit, &n, d));
	CHECK(n == 2);
	OK(nvmlUnitGetDevices(unit, &n, d));
	is(d[1], 4);

	OK(nvmlDeviceGetHandleBySerial("3", &out));
	is(out, 4);
	IS(NVML_ERROR_NOT_FOUND, nvmlDeviceGetHandleBySerial("2", &out));
	uuid.value.bytes[0] = 2;
	OK(nvmlDeviceGetHandleByUUIDV(&uuid, &out));
	is(out, 2);
	uuid.value.bytes[0] = 1;
	IS(NVML_ERROR_NOT_FOUND + 9 * !!getenv("FAKE_LOST"), nvmlDeviceGetHandleByUUIDV(&uuid, &out));
	/* Somebody else's lost GPU keeps nobody from his own. */
	OK(nvmlDeviceGetHandleByUUID("GPU-02020202-0202-0202-0202-020202020202", &out));
	is(out, 2);

	OK(nvmlDeviceGetUtilizationRates(device(0), &u));
	say("%u %u", u.gpu, u.memory);
	IS(NVML_ERROR_NOT_SUPPORTED, nvmlDeviceGetSamples(device(0), NVML_MEMORY_UTILIZATION_SAMPLES, 0, NULL, &n, NULL));
	OK(nvmlDeviceGetSamples(device(0), NVML_TOTAL_POWER_SAMPLES, 0, NULL, &n, NULL));
	CHECK(n == 5);
	/* A later version than the table knows is longer than what we hand on. */
	IS(NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
	   nvmlDeviceGetRunningProcessDetailList(device(0), &(nvmlProcessDetailList_t){ .version = 544 | 2u << 24 }));
	/* Not in the fake. */
	IS(NVML_ERROR_FUNCTION_NOT_FOUND, named("nvmlDeviceGetFanSpeed")());
	IS(NVML_ERROR_FUNCTION_NOT_FOUND, nvmlDeviceGetMemoryInfo(device(0), &(nvmlMemory_t){ 0 }));
	OK(nvmlShutdown());
	IS(NVML_ERROR_UNINITIALIZED, nvmlShutdown());
	IS(NVML_ERROR_UNINITIALIZED, named("nvmlDeviceSetComputeMode")());
	say("done");
	return 0;
}
