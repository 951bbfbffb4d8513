/* SPDX-License-Identifier: Apache-2.0 */
/* Who uses a device, of those whom the caller can see: pids are those of its pid namespace. */
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

static void put(const struct list *l, uint32_t *n, unsigned pid, unsigned long long used)
{
	if (l->infos && *n < *l->count)
		l->put(l->infos, *n, pid, used);
	++*n;
}

static nvmlReturn_t leave_list(const struct list *l, uint32_t n)
{
	nvmlReturn_t r = n > *l->count ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS;

	*l->count = n;
	return leave(r);
}

static nvmlReturn_t compute(nvmlDevice_t h, const struct list *l)
{
	struct sim_gpu *g;
	uint32_t gpu, n = 0;
	nvmlReturn_t r = enter_device(h, &g, &gpu);

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
		uint32_t pid = pid_of(&nvml.mc, (int)i);

		if (pid)
			put(l, &n, pid, machine_has(p, gpu));
	}
	if (atomic_load(&g->is.mps) == SIM_MPS_SERVER)
		put(l, &n, MPS_SERVER_PID, 0);
	return leave_list(l, n);
}

/* Those of MPS. A GPU that shows the server can not list them: it is one before Volta. */
static nvmlReturn_t mps(nvmlDevice_t h, const struct list *l)
{
	struct sim_gpu *g;
	uint32_t n = 0;
	nvmlReturn_t r = enter_device(h, &g, NULL);

	if (r)
		return r;
	if (!l->count)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	if (atomic_load(&g->is.mps) == SIM_MPS_SERVER)
		return leave(NVML_ERROR_NOT_SUPPORTED);
	if (atomic_load(&g->is.mps) == SIM_MPS_CLIENT)
		put(l, &n, MPS_CLIENT_PID, 0);
	return leave_list(l, n);
}

/* There are no graphics. */
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

#define LIST(NAME, TYPE, GIVE, PUT)                                                                                    \
	EXPORT nvmlReturn_t NAME(nvmlDevice_t h, unsigned int *n, TYPE *infos)                                         \
	{                                                                                                              \
		return GIVE(h, &(struct list){ n, PUT, infos });                                                       \
	}

LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, compute, put_v1)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, compute, put_v2)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, compute, put_v2)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, mps, put_v1)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, mps, put_v2)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t, mps, put_v2)

#define NONE(NAME, TYPE)                                                                                               \
	EXPORT nvmlReturn_t NAME(nvmlDevice_t h, unsigned int *n, TYPE *infos)                                         \
	{                                                                                                              \
		(void)infos;                                                                                           \
		return none(h, n);                                                                                     \
	}

NONE(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t)
NONE(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t)
NONE(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t)
