/* SPDX-License-Identifier: Apache-2.0 */
/* What a device is called, and what the vGPU has and uses of it. */
#include <string.h>

#include "nvml.h"

#define SUFFIX " (vGPU)"
#define MEMORY_V2 (sizeof(nvmlMemory_v2_t) | 2u << 24) /* as NVML numbers versions */

nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned int length)
{
	char text[NVML_TEXT + sizeof(SUFFIX)];
	uint8_t uuid[16];
	nvmlReturn_t r;

	PASS_NESTED(nvmlDeviceGetName, device, name, length);
	r = REAL(nvmlDeviceGetName, device, name ? text : NULL, NVML_TEXT);
	if (r == NVML_SUCCESS)
		r = vgpu_nvml_own(device, uuid);
	if (r != NVML_SUCCESS)
		return r;
	strcat(text, SUFFIX);
	if (strlen(text) >= length)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(name, text);
	return NVML_SUCCESS;
}

static unsigned long long least(unsigned long long a, unsigned long long b)
{
	return a < b ? a : b;
}

/* The numbers that cuMemGetInfo gives too: never more than there is, and no more
 * free than the driver has left, or others that share the limit. */
static nvmlReturn_t memory(nvmlDevice_t device, unsigned long long *total, unsigned long long *used, unsigned long long *free)
{
	struct vgpu_usage usage;
	nvmlReturn_t r = vgpu_nvml_usage(device, &usage, NULL);

	if (r != NVML_SUCCESS)
		return r;
	*total = least(*total, usage.limit);
	*used = least(*total, usage.used);
	*free = least(*total - *used - least(*total - *used, usage.others), *free);
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t device, nvmlMemory_t *info)
{
	nvmlMemory_t m;
	nvmlReturn_t r;

	PASS_NESTED(nvmlDeviceGetMemoryInfo, device, info);
	r = REAL(nvmlDeviceGetMemoryInfo, device, info ? &m : NULL);
	if (r == NVML_SUCCESS)
		r = memory(device, &m.total, &m.used, &m.free);
	if (r == NVML_SUCCESS)
		*info = m;
	return r;
}

nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t device, nvmlMemory_v2_t *info)
{
	/* A version that only the real library knows may be longer: it sees none. */
	nvmlMemory_v2_t m = { .version = info && info->version == MEMORY_V2 ? MEMORY_V2 : 0 };
	nvmlReturn_t r;

	PASS_NESTED(nvmlDeviceGetMemoryInfo_v2, device, info);
	r = REAL(nvmlDeviceGetMemoryInfo_v2, device, info ? &m : NULL);
	if (r == NVML_SUCCESS)
		r = memory(device, &m.total, &m.used, &m.free);
	if (r != NVML_SUCCESS)
		return r;
	/* What is neither used here nor free: total = reserved + used + free. */
	m.reserved = m.total - m.used - m.free;
	*info = m;
	return NVML_SUCCESS;
}

/* Compute: the held time. Memory: the GPU's own number times the vGPU's part of
 * its compute, as the real library knows only both of all vGPUs together. */
nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t device, nvmlUtilization_t *rates)
{
	struct vgpu_usage usage;
	nvmlUtilization_t u;
	unsigned held;
	nvmlReturn_t r;

	PASS_NESTED(nvmlDeviceGetUtilizationRates, device, rates);
	r = REAL(nvmlDeviceGetUtilizationRates, device, rates ? &u : NULL);
	if (r == NVML_SUCCESS)
		r = vgpu_nvml_usage(device, &usage, NULL);
	if (r != NVML_SUCCESS)
		return r;
	held = (unsigned)(least(usage.held_ppm, 1000000) + 5000) / 10000;
	rates->memory = u.gpu > held ? u.memory * held / u.gpu : u.memory;
	if (rates->memory > held)
		rates->memory = held;
	rates->gpu = held;
	return NVML_SUCCESS;
}

/* Samples of use are of all vGPUs together; those of power and clocks are the
 * GPU's. */
nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t device, nvmlSamplingType_t type, unsigned long long since,
				  nvmlValueType_t *value_type, unsigned int *count, nvmlSample_t *samples)
{
	uint8_t uuid[16];
	nvmlReturn_t r;

	PASS_NESTED(nvmlDeviceGetSamples, device, type, since, value_type, count, samples);
	if (type != NVML_GPU_UTILIZATION_SAMPLES && type != NVML_MEMORY_UTILIZATION_SAMPLES)
		return REAL(nvmlDeviceGetSamples, device, type, since, value_type, count, samples);
	r = vgpu_nvml_own(device, uuid);
	return r == NVML_SUCCESS ? NVML_ERROR_NOT_SUPPORTED : r;
}
