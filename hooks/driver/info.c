/* SPDX-License-Identifier: Apache-2.0 */
/* What the driver says about memory and devices, as it is for the vGPU. Never
 * more than there is: the real numbers are an upper bound of ours. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "memory.h"

#define SUFFIX " (vGPU)"

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* False: nothing is known but what the driver said. */
static bool room(int gpu, uint64_t *free, uint64_t *total)
{
	uint64_t limit, used;

	if (gpu < 0)
		return false;
	vgpu_pools_settle(gpu);
	if (vgpu_gate_memory((unsigned)gpu, &limit, &used) != 0)
		return false;
	*free = least(*free, limit > used ? limit - used : 0);
	*total = least(*total, limit);
	return true;
}

VGPU_HOOK(vgpu_mem_get_info, cuMemGetInfo_v2, size_t *free, size_t *total)
{
	uint64_t f, t;
	CUresult r;

	if (!vgpu_managed(caller))
		return real(free, total);
	vgpu_thread.nested++;
	r = real(free, total);
	if (r == CUDA_SUCCESS) {
		f = *free;
		t = *total;
		if (room(vgpu_current_gpu(), &f, &t)) {
			*free = f;
			*total = t;
		}
	}
	vgpu_thread.nested--;
	return r;
}

VGPU_HOOK(vgpu_mem_get_info_v1, cuMemGetInfo, unsigned int *free, unsigned int *total)
{
	uint64_t f, t;
	CUresult r;

	if (!vgpu_managed(caller))
		return real(free, total);
	vgpu_thread.nested++;
	r = real(free, total);
	if (r == CUDA_SUCCESS) {
		f = *free;
		t = *total;
		if (room(vgpu_current_gpu(), &f, &t)) {
			*free = (unsigned int)f;
			*total = (unsigned int)t;
		}
	}
	vgpu_thread.nested--;
	return r;
}

static uint64_t at_most_limit(CUdevice device, uint64_t bytes)
{
	uint64_t limit;
	int gpu = vgpu_device_gpu(device);

	if (gpu < 0 || vgpu_gate_memory((unsigned)gpu, &limit, NULL) != 0)
		return bytes;
	return least(bytes, limit);
}

VGPU_HOOK(vgpu_total_mem, cuDeviceTotalMem_v2, size_t *bytes, CUdevice device)
{
	CUresult r;

	if (!vgpu_managed(caller))
		return real(bytes, device);
	vgpu_thread.nested++;
	r = real(bytes, device);
	if (r == CUDA_SUCCESS)
		*bytes = at_most_limit(device, *bytes);
	vgpu_thread.nested--;
	return r;
}

VGPU_HOOK(vgpu_total_mem_v1, cuDeviceTotalMem, unsigned int *bytes, CUdevice device)
{
	CUresult r;

	if (!vgpu_managed(caller))
		return real(bytes, device);
	vgpu_thread.nested++;
	r = real(bytes, device);
	if (r == CUDA_SUCCESS)
		*bytes = (unsigned int)at_most_limit(device, *bytes);
	vgpu_thread.nested--;
	return r;
}

VGPU_HOOK(vgpu_device_name, cuDeviceGetName, char *name, int len, CUdevice device)
{
	size_t used;
	CUresult r;

	if (!vgpu_managed(caller))
		return real(name, len, device);
	vgpu_thread.nested++;
	r = real(name, len, device);
	vgpu_thread.nested--;
	if (r == CUDA_SUCCESS && vgpu_device_gpu(device) >= 0) {
		used = strnlen(name, (size_t)len);
		snprintf(name + used, (size_t)len - used, "%s", SUFFIX);
	}
	return r;
}
