/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An NVML of four GPUs for what the simulated one has not: neighbours, units,
 * serial numbers, samples. It calls its own exports by name, and is not linked
 * symbolically: where ours stands before it, those calls come to ours. GPU 0 is
 * lost if FAKE_LOST is set.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../nvml_abi.h"

struct nvmlDevice_st {
	unsigned index;
};

static struct nvmlDevice_st gpu[4] = { { 0 }, { 1 }, { 2 }, { 3 } };
static int inits;

nvmlReturn_t nvmlInit_v2(void)
{
	inits++;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlInit(void)
{
	return nvmlInit_v2();
}

nvmlReturn_t nvmlShutdown(void)
{
	if (inits == 0)
		return NVML_ERROR_UNINITIALIZED;
	inits--;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *n)
{
	*n = 4;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *n)
{
	return nvmlDeviceGetCount_v2(n);
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int i, nvmlDevice_t *out)
{
	unsigned n = 0;

	/* All of them, not only those that others may see. */
	if (nvmlDeviceGetCount(&n) != NVML_SUCCESS || n != 4)
		return NVML_ERROR_UNKNOWN;
	if (i >= 4)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (i == 0 && getenv("FAKE_LOST"))
		return NVML_ERROR_GPU_IS_LOST;
	out->handle = &gpu[i];
	return NVML_SUCCESS;
}

/* GPU-0i0i0i0i-..., i from 1. */
nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t d, char *text, unsigned int size)
{
	unsigned b = d.handle->index + 1;

	snprintf(text, size, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", b, b, b, b, b, b, b, b, b, b,
		 b, b, b, b, b, b);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t d, unsigned int *index)
{
	*index = d.handle->index;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out)
{
	char text[64];

	for (unsigned i = 0; i < 4; i++) {
		/* As the real one, at the first that is lost. */
		if (nvmlDeviceGetHandleByIndex_v2(i, out) != NVML_SUCCESS)
			return NVML_ERROR_GPU_IS_LOST;
		nvmlDeviceGetUUID(*out, text, sizeof(text));
		if (strcmp(text, uuid) == 0)
			return NVML_SUCCESS;
	}
	return NVML_ERROR_NOT_FOUND;
}

nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *out)
{
	return nvmlDeviceGetHandleByIndex_v2(uuid->value.bytes[0] - 1u, out);
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *out)
{
	return nvmlDeviceGetHandleByIndex_v2((unsigned)atoi(serial), out);
}

static nvmlReturn_t all_of(unsigned *count, nvmlDevice_t *devices)
{
	if (!count || (*count && !devices))
		return NVML_ERROR_INVALID_ARGUMENT;
	if (*count == 0)
		*count = 4;
	else
		for (unsigned i = 0; i < *count && i < 4; i++)
			devices[i].handle = &gpu[i];
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t d, nvmlGpuTopologyLevel_t level, unsigned int *count,
					      nvmlDevice_t *devices)
{
	(void)d;
	(void)level;
	return all_of(count, devices);
}

nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned int cpu, unsigned int *count, nvmlDevice_t *devices)
{
	(void)cpu;
	return all_of(count, devices);
}

nvmlReturn_t nvmlUnitGetDevices(nvmlUnit_t unit, unsigned int *count, nvmlDevice_t *devices)
{
	(void)unit;
	if (*count < 4) {
		*count = 4;
		return NVML_ERROR_INSUFFICIENT_SIZE;
	}
	*count = 4;
	return all_of(count, devices);
}

/* Knows a version that is longer than the first one, and fills all of it. */
nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t d, nvmlProcessDetailList_t *list)
{
	(void)d;
	if (list->version >> 24 == 2)
		memset((char *)list + sizeof(*list), 0x5a, 512);
	else if (list->version >> 24 != 1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	list->numProcArrayEntries = 0;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t d, nvmlUtilization_t *u)
{
	(void)d;
	*u = (nvmlUtilization_t){ .gpu = 80, .memory = 40 };
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t d, nvmlSamplingType_t type, unsigned long long since, nvmlValueType_t *value_type,
				  unsigned int *count, nvmlSample_t *samples)
{
	(void)d;
	(void)type;
	(void)since;
	(void)value_type;
	(void)samples;
	*count = 5;
	return NVML_SUCCESS;
}
