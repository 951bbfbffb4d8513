/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who uses a device. A pid is the process's own, in its own pid namespace: a
 * real driver would translate it to that of the caller, which we can not.
 */
#include "nvml.h"

struct list {
	unsigned *count;
	void (*put)(void *infos, unsigned i, unsigned pid, unsigned long long used);
	void *infos;
};

static void put_v1(void *infos, unsigned i, unsigned pid, unsigned long long used)
{
	((nvmlProcessInfo_v1_t *)infos)[i] = (nvmlProcessInfo_v1_t){ .pid = pid, .usedGpuMemory = used };
}

static void put_v2(void *infos, unsigned i, unsigned pid, unsigned long long used)
{
	((nvmlProcessInfo_v2_t *)infos)[i] = (nvmlProcessInfo_v2_t){
		.pid = pid, .usedGpuMemory = used, .gpuInstanceId = UINT32_MAX, .computeInstanceId = UINT32_MAX };
}

static nvmlReturn_t compute(nvmlDevice_t h, const struct list *l)
{
	uint32_t gpu, n = 0;
	nvmlReturn_t r = enter_device(h, NULL, &gpu);

	if (r)
		return r;
	if (!l->count)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	machine_bury_all(&nvml.mc);
	uint32_t rows = atomic_load(&nvml.mc.m->rows);
	for (uint32_t i = 0; i < rows; i++) {
		struct sim_proc *p = &nvml.mc.m->proc[i];

		if (!atomic_load(&p->id) || !atomic_load(&p->contexts[gpu]))
			continue;
		if (l->infos && n < *l->count)
			l->put(l->infos, n, p->pid, atomic_load(&p->used[gpu]));
		n++;
	}
	r = n > *l->count ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;
	*l->count = n;
	return leave(r);
}

/* There are no graphics and no MPS clients. */
static nvmlReturn_t none(nvmlDevice_t h, unsigned *count)
{
	nvmlReturn_t r = enter_device(h, NULL, NULL);

	if (r)
		return r;
	if (!count)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	*count = 0;
	return leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses(nvmlDevice_t h, unsigned int *n, nvmlProcessInfo_v1_t *infos)
{
	return compute(h, &(struct list){ n, put_v1, infos });
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v2(nvmlDevice_t h, unsigned int *n, nvmlProcessInfo_v2_t *infos)
{
	return compute(h, &(struct list){ n, put_v2, infos });
}

EXPORT nvmlReturn_t nvmlDeviceGetComputeRunningProcesses_v3(nvmlDevice_t h, unsigned int *n, nvmlProcessInfo_t *infos)
{
	return compute(h, &(struct list){ n, put_v2, infos });
}

#define NONE(NAME, TYPE)                                                                                               \
	EXPORT nvmlReturn_t NAME(nvmlDevice_t h, unsigned int *n, TYPE *infos)                                         \
	{                                                                                                              \
		(void)infos;                                                                                           \
		return none(h, n);                                                                                     \
	}

NONE(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
NONE(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
NONE(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
NONE(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t)
NONE(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t)
NONE(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t)
