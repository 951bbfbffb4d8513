/* SPDX-License-Identifier: Apache-2.0 */
/* Lists of devices near to something: those of the vGPU among them. */
#include "nvml.h"

/* Keeps, of the n devices, those of the vGPU. */
static nvmlReturn_t filter(nvmlReturn_t r, nvmlDevice_t *all, unsigned *n)
{
	struct vgpu_identity identity;
	unsigned kept = 0;

	if (r == NVML_SUCCESS)
		r = vgpu_nvml_identity(true, &identity);
	if (r != NVML_SUCCESS)
		return r;
	for (unsigned i = 0; i < *n && i < NVML_DEVICES; i++)
		if (vgpu_nvml_is_own(&identity, all[i]))
			all[kept++] = all[i];
	*n = kept;
	return NVML_SUCCESS;
}

/* As many as were asked for, or how many there are if that is 0. */
static nvmlReturn_t give(nvmlReturn_t r, nvmlDevice_t *all, unsigned n, unsigned *count, nvmlDevice_t *to)
{
	r = filter(r, all, &n);
	if (r != NVML_SUCCESS)
		return r;
	if (*count > 0 && !to)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (*count == 0 || n < *count)
		*count = n;
	for (unsigned i = 0; to && i < *count; i++)
		to[i] = all[i];
	return NVML_SUCCESS;
}

/* The real library is asked for all that it has, and for no more: it fills what
 * it is asked for. */
#define ALL(NAME, ...)                                                                                          \
	nvmlDevice_t all[NVML_DEVICES];                                                                                \
	unsigned n = 0;                                                                                                \
	nvmlReturn_t r;                                                                                                \
                                                                                                                       \
	PASS_NESTED(NAME, __VA_ARGS__, count, devices);                                                                \
	r = REAL(NAME, __VA_ARGS__, count ? &n : NULL, NULL);                                                          \
	if (r != NVML_SUCCESS)                                                                                         \
		return r;                                                                                              \
	if (n > NVML_DEVICES)                                                                                          \
		n = NVML_DEVICES;                                                                                      \
	if (n > 0)                                                                                                     \
		r = REAL(NAME, __VA_ARGS__, &n, all);                                                                  \
	return give(r, all, n, count, devices)

nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t device, nvmlGpuTopologyLevel_t level, unsigned int *count,
					      nvmlDevice_t *devices)
{
	ALL(nvmlDeviceGetTopologyNearestGpus, device, level);
}

nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned int cpu, unsigned int *count, nvmlDevice_t *devices)
{
	ALL(nvmlSystemGetTopologyGpuSet, cpu);
}

nvmlReturn_t nvmlUnitGetDevices(nvmlUnit_t unit, unsigned int *count, nvmlDevice_t *devices)
{
	nvmlDevice_t all[NVML_DEVICES];
	unsigned n = NVML_DEVICES;
	nvmlReturn_t r;

	PASS_NESTED(nvmlUnitGetDevices, unit, count, devices);
	r = filter(REAL(nvmlUnitGetDevices, unit, count ? &n : NULL, all), all, &n);
	if (r != NVML_SUCCESS)
		return r;
	if (n > *count || (n > 0 && !devices))
		r = n > *count ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned i = 0; r == NVML_SUCCESS && i < n; i++)
		devices[i] = all[i];
	*count = n;
	return r;
}
