/* SPDX-License-Identifier: Apache-2.0 */
/* What a device is and how it does. */
#include <string.h>

#include "nvml.h"

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t h, char *name, unsigned int length)
{
	nvmlReturn_t r = enter_device(h, NULL, NULL);

	return r ? r : leave(give_text(name, length, nvml.mc.m->model));
}

GET(nvmlDeviceGetIndex, unsigned int, index)
GET(nvmlDeviceGetMinorNumber, unsigned int, index)
GET(nvmlDeviceGetBrand, nvmlBrandType_t, NVML_BRAND_NVIDIA)
GET(nvmlDeviceGetArchitecture, nvmlDeviceArchitecture_t, NVML_DEVICE_ARCH_AMPERE)
GET(nvmlDeviceGetComputeMode, nvmlComputeMode_t, (nvmlComputeMode_t)atomic_load(&g->is.compute_mode))
GET(nvmlDeviceGetPersistenceMode, nvmlEnableState_t, NVML_FEATURE_ENABLED)
GET(nvmlDeviceGetVirtualizationMode, nvmlGpuVirtualizationMode_t, NVML_GPU_VIRTUALIZATION_MODE_NONE)
GET(nvmlDeviceGetMaxMigDeviceCount, unsigned int, 0)
GET(nvmlDeviceIsMigDeviceHandle, unsigned int, 0)
GET(nvmlDeviceGetRetiredPagesPendingStatus, nvmlEnableState_t,
    atomic_load(&g->is.retirement_pending) ? NVML_FEATURE_ENABLED : NVML_FEATURE_DISABLED)
GET(nvmlDeviceGetCurrentClocksEventReasons, unsigned long long, atomic_load(&g->is.clocks))
/* Its name before driver 535. */
GET(nvmlDeviceGetCurrentClocksThrottleReasons, unsigned long long, atomic_load(&g->is.clocks))

/* A GPU that has no MIG, unless it is on. */
EXPORT nvmlReturn_t nvmlDeviceGetMigMode(nvmlDevice_t h, unsigned int *current, unsigned int *pending)
{
	struct sim_gpu *g;
	nvmlReturn_t r = enter_device(h, &g, NULL);

	if (r)
		return r;
	if (!current || !pending)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	if (!atomic_load(&g->is.mig))
		return leave(NVML_ERROR_NOT_SUPPORTED);
	*current = *pending = 1;
	return leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetRemappedRows(nvmlDevice_t h, unsigned int *corrected, unsigned int *uncorrected,
					      unsigned int *pending, unsigned int *failed)
{
	struct sim_gpu *g;
	nvmlReturn_t r = enter_device(h, &g, NULL);

	if (r)
		return r;
	if (!corrected || !uncorrected || !pending || !failed)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	if (atomic_load(&g->is.mig))
		return leave(NVML_ERROR_NOT_SUPPORTED);
	*corrected = *uncorrected = 0;
	*pending = atomic_load(&g->is.remap_pending);
	*failed = atomic_load(&g->is.remap_failed);
	return leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetEccMode(nvmlDevice_t h, nvmlEnableState_t *current, nvmlEnableState_t *pending)
{
	nvmlReturn_t r = enter_device(h, NULL, NULL);

	if (r)
		return r;
	if (!current || !pending)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	*current = *pending = NVML_FEATURE_ENABLED;
	return leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetTotalEccErrors(nvmlDevice_t h, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter,
						unsigned long long *n)
{
	struct sim_gpu *g;
	nvmlReturn_t r = enter_device(h, &g, NULL);

	if (r)
		return r;
	if (!n || type >= NVML_MEMORY_ERROR_TYPE_COUNT || counter >= NVML_ECC_COUNTER_TYPE_COUNT)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	*n = type == NVML_MEMORY_ERROR_TYPE_UNCORRECTED ? atomic_load(&g->is.uncorrected) : 0;
	return leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t h, int *major, int *minor)
{
	nvmlReturn_t r = enter_device(h, NULL, NULL);

	if (r)
		return r;
	if (!major || !minor)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	*major = 8;
	*minor = 0;
	return leave(NVML_SUCCESS);
}

static void memory(uint32_t gpu, unsigned long long *total, unsigned long long *used, unsigned long long *free)
{
	machine_bury_all(&nvml.mc);
	*total = nvml.mc.m->memory;
	*used = machine_used(&nvml.mc, gpu);
	if (*used > *total)
		*used = *total; /* two that allocate at once, for a moment */
	*free = *total - *used;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t h, nvmlMemory_t *m)
{
	uint32_t gpu;
	nvmlReturn_t r = enter_device(h, NULL, &gpu);

	if (r)
		return r;
	if (!m)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	memory(gpu, &m->total, &m->used, &m->free);
	return leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t h, nvmlMemory_v2_t *m)
{
	uint32_t gpu;
	nvmlReturn_t r = enter_device(h, NULL, &gpu);

	if (r)
		return r;
	if (!m)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	/* the struct's size in the low bits, 2 in the top byte */
	if (m->version != (sizeof(*m) | 2u << 24))
		return leave(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	m->reserved = 0;
	memory(gpu, &m->total, &m->used, &m->free);
	return leave(NVML_SUCCESS);
}

/* The share of time that some work ran, since the last call or the start of the machine's clock. */
EXPORT nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t h, nvmlUtilization_t *u)
{
	static struct {
		uint64_t at_ns, busy_ns;
		unsigned gpu;
	} last[SIM_MAX_GPUS];
	const uint64_t window_ns = 166666667; /* as the real one: no finer than 1/6 s */
	struct sim_gpu *g;
	uint32_t i;
	nvmlReturn_t r = enter_device(h, &g, &i);

	if (r)
		return r;
	if (!u)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	uint64_t now = clock_ns(), busy = atomic_load(&g->busy_ns);
	if (last[i].at_ns == 0) {
		last[i].at_ns = now;
		last[i].busy_ns = busy;
	} else if (now - last[i].at_ns >= window_ns) {
		uint64_t percent = (busy - last[i].busy_ns) * 100 / (now - last[i].at_ns);

		last[i].gpu = percent > 100 ? 100 : (unsigned)percent;
		last[i].at_ns = now;
		last[i].busy_ns = busy;
	}
	u->gpu = last[i].gpu;
	u->memory = 0;
	return leave(NVML_SUCCESS);
}
