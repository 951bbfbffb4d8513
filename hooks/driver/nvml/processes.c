/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The processes of the vGPU, as the caller's pid namespace numbers them. The
 * real library's lists are of all containers, and by the host's numbers.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "nvml.h"

#define NO_INSTANCE UINT32_MAX
#define DETAIL_V1   (sizeof(nvmlProcessDetailList_v1_t) | 1u << 24)

/* The three forms of an entry. */
static void put_v1(void *to, unsigned i, const struct vgpu_process *p)
{
	((nvmlProcessInfo_v1_t *)to)[i] = (nvmlProcessInfo_v1_t){ .pid = p->pid, .usedGpuMemory = p->bytes };
}

static void put_v2(void *to, unsigned i, const struct vgpu_process *p)
{
	((nvmlProcessInfo_v2_t *)to)[i] = (nvmlProcessInfo_v2_t){
		.pid = p->pid, .usedGpuMemory = p->bytes, .gpuInstanceId = NO_INSTANCE, .computeInstanceId = NO_INSTANCE };
}

static void put_detail(void *to, unsigned i, const struct vgpu_process *p)
{
	((nvmlProcessDetail_v1_t *)to)[i] = (nvmlProcessDetail_v1_t){
		.pid = p->pid, .usedGpuMemory = p->bytes, .gpuInstanceId = NO_INSTANCE, .computeInstanceId = NO_INSTANCE };
}

/* All, or only how many there are if they do not fit. */
static nvmlReturn_t give(nvmlDevice_t device, bool compute, unsigned *count, void *to,
			 void (*put)(void *to, unsigned i, const struct vgpu_process *p))
{
	struct vgpu_process *list = NULL;
	struct vgpu_usage usage;
	nvmlReturn_t r = vgpu_nvml_usage(device, &usage, &list);
	unsigned n = compute ? usage.processes : 0;

	if (r != NVML_SUCCESS)
		return r;
	if (n > *count)
		r = NVML_ERROR_INSUFFICIENT_SIZE;
	else if (n > 0 && !to)
		r = NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned i = 0; r == NVML_SUCCESS && i < n; i++)
		put(to, i, &list[i]);
	*count = n;
	free(list);
	return r;
}

/* What the real library says to a question for the number alone. That it can not
 * tell (MIG, an old driver) does not keep us from it. */
static bool asked_well(nvmlReturn_t r)
{
	return r == NVML_SUCCESS || r == NVML_ERROR_INSUFFICIENT_SIZE || r == NVML_ERROR_NOT_SUPPORTED ||
	       r == NVML_ERROR_NO_PERMISSION;
}

/* There are neither graphics nor MPS in a vGPU: those lists are empty, where
 * there are such lists. */
#define LIST(NAME, TYPE, PUT, COMPUTE)                                                                                 \
	nvmlReturn_t NAME(nvmlDevice_t device, unsigned int *count, TYPE *infos)                                       \
	{                                                                                                              \
		unsigned none = 0;                                                                                     \
		nvmlReturn_t r;                                                                                        \
                                                                                                                       \
		PASS_NESTED(NAME, device, count, infos);                                                               \
		r = REAL(NAME, device, count ? &none : NULL, NULL);                                                    \
		if (!asked_well(r) || (r == NVML_ERROR_NOT_SUPPORTED && !(COMPUTE)))                                   \
			return r;                                                                                      \
		return count ? give(device, COMPUTE, count, infos, PUT) : NVML_ERROR_INVALID_ARGUMENT;                 \
	}

LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, put_v1, true)
LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, put_v2, true)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, put_v2, true)
LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, put_v1, false)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t, put_v2, false)
LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, put_v2, false)
LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, put_v1, false)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, put_v2, false)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t, put_v2, false)

nvmlReturn_t nvmlDeviceGetRunningProcessDetailList(nvmlDevice_t device, nvmlProcessDetailList_t *list)
{
	nvmlProcessDetailList_t none;
	nvmlReturn_t r;

	PASS_NESTED(nvmlDeviceGetRunningProcessDetailList, device, list);
	/* A version that only the real library knows may be longer: it sees none. */
	if (list)
		none = (nvmlProcessDetailList_t){ .version = list->version == DETAIL_V1 ? DETAIL_V1 : 0, .mode = list->mode };
	r = REAL(nvmlDeviceGetRunningProcessDetailList, device, list ? &none : NULL);
	if (!asked_well(r))
		return r;
	if (!list)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (list->version != DETAIL_V1)
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	return give(device, list->mode == NVML_PROCESS_MODE_COMPUTE || list->mode == NVML_PROCESS_MODE_ALL,
		    &list->numProcArrayEntries, list->procArray, put_detail);
}

/* Those that the caller's /proc shows; cropped, as the real library crops. */
nvmlReturn_t nvmlSystemGetProcessName(unsigned int pid, char *name, unsigned int length)
{
	char path[32], text[4096];
	nvmlReturn_t r;
	ssize_t n = 0;
	int fd;

	PASS_NESTED(nvmlSystemGetProcessName, pid, name, length);
	r = REAL(nvmlSystemGetProcessName, pid, name && length ? text : NULL, sizeof(text));
	if (r == NVML_ERROR_UNINITIALIZED || r == NVML_ERROR_LIBRARY_NOT_FOUND)
		return r;
	if (!name || length == 0)
		return NVML_ERROR_INVALID_ARGUMENT;
	snprintf(path, sizeof(path), "/proc/%u/cmdline", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return errno == EACCES ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_NOT_FOUND;
	do {
		n = read(fd, text, sizeof(text) - 1);
	} while (n < 0 && errno == EINTR);
	close(fd);
	if (n < 0)
		return NVML_ERROR_NOT_FOUND;
	text[n] = 0; /* the first argument alone, as each ends with a NUL */
	snprintf(name, length, "%s", text);
	return NVML_SUCCESS;
}
