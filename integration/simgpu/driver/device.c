/* SPDX-License-Identifier: Apache-2.0 */
/* Devices: who they are. Attributes are in attributes.c. */
#include <stdio.h>
#include <string.h>

#include "sim.h"

static CUresult enter_device(CUdevice dev)
{
	CUresult r = enter();

	if (r)
		return r;
	return device_ok(dev) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

static const struct sim_gpu *gpu_of(CUdevice dev)
{
	return &sim.mc.m->gpu[sim.device[dev]];
}

EXPORT CUresult cuDriverGetVersion(int *version)
{
	if (!version)
		return CUDA_ERROR_INVALID_VALUE;
	*version = SIM_CUDA_VERSION;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int *count)
{
	CUresult r = enter();

	if (r)
		return r;
	if (!count)
		return CUDA_ERROR_INVALID_VALUE;
	*count = sim.n_devices;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGet(CUdevice *device, int ordinal)
{
	CUresult r = enter_device(ordinal);

	if (r)
		return r;
	if (!device)
		return CUDA_ERROR_INVALID_VALUE;
	*device = ordinal;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetName(char *name, int len, CUdevice dev)
{
	CUresult r = enter_device(dev);

	if (r)
		return r;
	if (!name || len <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	snprintf(name, (size_t)len, "%s", sim.mc.m->model);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice dev)
{
	CUresult r = enter_device(dev);

	if (r)
		return r;
	if (!uuid)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(uuid, gpu_of(dev)->uuid, 16);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice dev)
{
	return cuDeviceGetUuid_v2(uuid, dev);
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice dev)
{
	CUresult r = enter_device(dev);

	if (r)
		return r;
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = sim.mc.m->memory;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem(unsigned int *bytes, CUdevice dev)
{
	CUresult r = enter_device(dev);

	if (r)
		return r;
	if (!bytes)
		return CUDA_ERROR_INVALID_VALUE;
	*bytes = sim.mc.m->memory > UINT32_MAX ? UINT32_MAX : (unsigned int)sim.mc.m->memory;
	return CUDA_SUCCESS;
}

static void bus_id(char out[32], CUdevice dev)
{
	snprintf(out, 32, "0000:%02x:00.0", gpu_of(dev)->pci_bus);
}

EXPORT CUresult cuDeviceGetPCIBusId(char *id, int len, CUdevice dev)
{
	char full[32];
	CUresult r = enter_device(dev);

	if (r)
		return r;
	if (!id || len <= 0)
		return CUDA_ERROR_INVALID_VALUE;
	bus_id(full, dev);
	snprintf(id, (size_t)len, "%s", full);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetByPCIBusId(CUdevice *dev, const char *id)
{
	unsigned domain = 0, bus = 0, slot = 0, function = 0;
	CUresult r = enter();

	if (r)
		return r;
	if (!dev || !id)
		return CUDA_ERROR_INVALID_VALUE;
	if (sscanf(id, "%x:%x:%x.%x", &domain, &bus, &slot, &function) < 3 &&
	    sscanf(id, "%x:%x.%x", &bus, &slot, &function) < 2)
		return CUDA_ERROR_INVALID_VALUE;
	for (int d = 0; d < sim.n_devices; d++)
		if (gpu_of(d)->pci_bus == bus) {
			*dev = d;
			return CUDA_SUCCESS;
		}
	return CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuDeviceGetLuid(char *luid, unsigned int *mask, CUdevice dev)
{
	(void)luid;
	(void)mask;
	(void)dev;
	return CUDA_ERROR_NOT_SUPPORTED; /* Windows only */
}

EXPORT CUresult cuDeviceComputeCapability(int *major, int *minor, CUdevice dev)
{
	CUresult r = enter_device(dev);

	if (r)
		return r;
	if (!major || !minor)
		return CUDA_ERROR_INVALID_VALUE;
	*major = 8;
	*minor = 0;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetProperties(CUdevprop *p, CUdevice dev)
{
	CUresult r = enter_device(dev);

	if (r)
		return r;
	if (!p)
		return CUDA_ERROR_INVALID_VALUE;
	*p = (CUdevprop){
		.maxThreadsPerBlock = 1024, .maxThreadsDim = { 1024, 1024, 64 },
		.maxGridSize = { 2147483647, 65535, 65535 }, .sharedMemPerBlock = 49152,
		.totalConstantMemory = 65536, .SIMDWidth = 32, .memPitch = 2147483647,
		.regsPerBlock = 65536, .clockRate = 1410000, .textureAlign = 512,
	};
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceCanAccessPeer(int *can, CUdevice dev, CUdevice peer)
{
	CUresult r = enter_device(dev);

	if (!r)
		r = enter_device(peer);
	if (r)
		return r;
	if (!can)
		return CUDA_ERROR_INVALID_VALUE;
	*can = dev != peer;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetP2PAttribute(int *value, CUdevice_P2PAttribute attrib, CUdevice dev, CUdevice peer)
{
	int can;
	CUresult r = cuDeviceCanAccessPeer(&can, dev, peer);

	if (r)
		return r;
	if (!value)
		return CUDA_ERROR_INVALID_VALUE;
	*value = attrib == CU_DEVICE_P2P_ATTRIBUTE_ACCESS_SUPPORTED ? can : 0;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetExecAffinitySupport(int *pi, CUexecAffinityType type, CUdevice dev)
{
	CUresult r = enter_device(dev);

	(void)type;
	if (r)
		return r;
	if (!pi)
		return CUDA_ERROR_INVALID_VALUE;
	*pi = 0;
	return CUDA_SUCCESS;
}
