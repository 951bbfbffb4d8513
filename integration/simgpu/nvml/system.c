/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>

#include "nvml.h"

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned int length)
{
	nvmlReturn_t r = enter();

	return r ? r : leave(give_text(version, length, SIM_DRIVER_VERSION));
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned int length)
{
	nvmlReturn_t r = enter();

	return r ? r : leave(give_text(version, length, "13." SIM_DRIVER_VERSION));
}

static nvmlReturn_t cuda_version(int *version)
{
	if (!version)
		return NVML_ERROR_INVALID_ARGUMENT;
	*version = SIM_CUDA_VERSION;
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version)
{
	return cuda_version(version);
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version)
{
	return cuda_version(version);
}

/* The name that the process gave when it first used the machine. */
EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
	nvmlReturn_t r = enter();

	if (r)
		return r;
	if (pid == MPS_SERVER_PID)
		return leave(give_text(name, length, "nvidia-cuda-mps-server"));
	machine_bury_all(&nvml.mc);
	uint32_t rows = atomic_load(&nvml.mc.m->rows);
	for (uint32_t i = 0; i < rows; i++) {
		const struct sim_proc *p = &nvml.mc.m->proc[i];

		if (atomic_load(&p->id) && pid_of(&nvml.mc, (int)i) == pid) {
			char copy[sizeof(p->name) + 1] = "";

			memcpy(copy, p->name, sizeof(p->name));
			return leave(give_text(name, length, copy));
		}
	}
	return leave(NVML_ERROR_NOT_FOUND);
}

EXPORT nvmlReturn_t nvmlSystemGetHicVersion(unsigned int *n, nvmlHwbcEntry_t *entries)
{
	nvmlReturn_t r = enter();

	(void)entries;
	if (r)
		return r;
	if (!n)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	*n = 0;
	return leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlSystemGetDriverBranch(nvmlSystemDriverBranchInfo_t *out, unsigned int length)
{
	nvmlReturn_t r = enter();

	if (r)
		return r;
	if (!out || length > sizeof(out->branch))
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	if (out->version != VERSION(nvmlSystemDriverBranchInfo_v1_t, 1u))
		return leave(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	return leave(give_text(out->branch, length, "r999_00"));
}
