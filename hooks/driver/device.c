/* SPDX-License-Identifier: Apache-2.0 */
/* Which of the driver's devices is which GPU of the vGPU. The container's own
 * CUDA_VISIBLE_DEVICES may hide or reorder them, so UUIDs say it. */
#include <string.h>

#include "memory.h"

#define DEVICES 64

/* Written once, before vgpu_active. */
static struct {
	int n;                     /* GPUs */
	int gpu[DEVICES];          /* of a device: its index and 1, or 0 */
	int device[VGPU_UUIDS];    /* of a GPU: its number and 1, or 0 */
} devices;

static CUresult uuid_of(CUuuid *uuid, CUdevice device)
{
	/* Of a MIG instance the second version gives its own. */
	CUresult r = VGPU_REAL(cuDeviceGetUuid_v2)(uuid, device);

	return r == CUDA_SUCCESS ? r : VGPU_REAL(cuDeviceGetUuid)(uuid, device);
}

void vgpu_devices_find(const uint8_t (*uuid)[16], int n)
{
	CUdevice device;
	CUuuid id;

	devices.n = n;
	vgpu_thread.nested++;
	for (int ordinal = 0; ordinal < n && VGPU_REAL(cuDeviceGet)(&device, ordinal) == CUDA_SUCCESS; ordinal++) {
		if (device < 0 || device >= DEVICES || uuid_of(&id, device) != CUDA_SUCCESS)
			continue;
		for (int i = 0; i < n; i++) {
			if (memcmp(&id, uuid[i], 16) != 0)
				continue;
			devices.gpu[device] = i + 1;
			devices.device[i] = device + 1;
		}
	}
	vgpu_thread.nested--;
}

int vgpu_device_gpu(CUdevice device)
{
	return device >= 0 && device < DEVICES ? devices.gpu[device] - 1 : -1;
}

CUdevice vgpu_gpu_device(int gpu)
{
	return gpu >= 0 && gpu < devices.n ? devices.device[gpu] - 1 : -1;
}

int vgpu_current_gpu(void)
{
	CUdevice device;

	return VGPU_REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS ? vgpu_device_gpu(device) : -1;
}

void vgpu_driver_changed(CUdevice device)
{
	int gpu = vgpu_device_gpu(device);

	for (int i = 0; i < devices.n; i++)
		if (devices.device[i] && (gpu < 0 || gpu == i))
			vgpu_gate_memory_changed((unsigned)i);
}
