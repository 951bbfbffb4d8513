/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finding devices: there are no others than the vGPU's. Counting them binds
 * nothing; whoever gets a handle has learned which GPU it is.
 */
#include <string.h>

#include "nvml.h"

/* After the real count, whose errors stand. */
static nvmlReturn_t count(nvmlReturn_t r, unsigned *n)
{
	struct vgpu_identity identity;

	if (r == NVML_SUCCESS)
		r = vgpu_nvml_identity(false, &identity);
	if (r == NVML_SUCCESS)
		*n = identity.gpus;
	return r;
}

nvmlReturn_t nvmlDeviceGetCount(unsigned int *n)
{
	unsigned all;

	PASS_NESTED(nvmlDeviceGetCount, n);
	return count(REAL(nvmlDeviceGetCount, n ? &all : NULL), n);
}

nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *n)
{
	unsigned all;

	PASS_NESTED(nvmlDeviceGetCount_v2, n);
	return count(REAL(nvmlDeviceGetCount_v2, n ? &all : NULL), n);
}

typedef nvmlReturn_t by_index_fn(unsigned int index, nvmlDevice_t *device);

static nvmlReturn_t real_by_index(by_index_fn *f, unsigned index, nvmlDevice_t *device)
{
	nvmlReturn_t r;

	vgpu_nested++;
	r = f(index, device);
	vgpu_nested--;
	return r;
}

/* The n-th of the vGPU's GPUs in the real library's order. One that is lost has
 * no UUID: it comes last, with the error that says so. */
static nvmlReturn_t nth(by_index_fn *f, unsigned total, unsigned n, nvmlDevice_t *device)
{
	struct vgpu_identity identity;
	nvmlReturn_t other = NVML_ERROR_NOT_FOUND, r = vgpu_nvml_identity(true, &identity);
	nvmlDevice_t d;

	if (r != NVML_SUCCESS)
		return r;
	if (n >= identity.count)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (unsigned i = 0; i < total; i++) {
		r = real_by_index(f, i, &d);
		if (r != NVML_SUCCESS) {
			other = r;
		} else if (vgpu_nvml_is_own(&identity, d) && n-- == 0) {
			*device = d;
			return NVML_SUCCESS;
		}
	}
	return other;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int index, nvmlDevice_t *device)
{
	unsigned total;
	nvmlReturn_t r;

	PASS_NESTED(nvmlDeviceGetHandleByIndex, index, device);
	r = REAL(nvmlDeviceGetCount, &total);
	if (r != NVML_SUCCESS)
		return r;
	return device ? nth(VGPU_REAL(nvmlDeviceGetHandleByIndex), total, index, device) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int index, nvmlDevice_t *device)
{
	unsigned total;
	nvmlReturn_t r;

	PASS_NESTED(nvmlDeviceGetHandleByIndex_v2, index, device);
	r = REAL(nvmlDeviceGetCount_v2, &total);
	if (r != NVML_SUCCESS)
		return r;
	return device ? nth(VGPU_REAL(nvmlDeviceGetHandleByIndex_v2), total, index, device) : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned int *index)
{
	unsigned total, real, before = 0;
	struct vgpu_identity identity;
	uint8_t uuid[16];
	nvmlDevice_t d;
	nvmlReturn_t r;

	PASS_NESTED(nvmlDeviceGetIndex, device, index);
	r = REAL(nvmlDeviceGetIndex, device, index ? &real : NULL);
	if (r == NVML_SUCCESS)
		r = vgpu_nvml_own(device, uuid);
	if (r == NVML_SUCCESS)
		r = vgpu_nvml_identity(true, &identity);
	if (r == NVML_SUCCESS)
		r = REAL(nvmlDeviceGetCount_v2, &total);
	if (r != NVML_SUCCESS)
		return r;
	for (unsigned i = 0; i < real && i < total; i++)
		before += REAL(nvmlDeviceGetHandleByIndex_v2, i, &d) == NVML_SUCCESS && vgpu_nvml_is_own(&identity, d);
	*index = before;
	return NVML_SUCCESS;
}

/* What the real library found: a GPU that is not the vGPU's is not there. */
static nvmlReturn_t only_own(nvmlReturn_t r, nvmlDevice_t found, nvmlDevice_t *device)
{
	struct vgpu_identity identity;

	if (r == NVML_SUCCESS)
		r = vgpu_nvml_identity(true, &identity);
	if (r != NVML_SUCCESS)
		return r;
	if (!vgpu_nvml_is_own(&identity, found))
		return NVML_ERROR_NOT_FOUND;
	*device = found;
	return NVML_SUCCESS;
}

nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device)
{
	nvmlDevice_t d;

	PASS_NESTED(nvmlDeviceGetHandleBySerial, serial, device);
	return only_own(REAL(nvmlDeviceGetHandleBySerial, serial, device ? &d : NULL), d, device);
}

nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device)
{
	nvmlDevice_t d;

	PASS_NESTED(nvmlDeviceGetHandleByUUIDV, uuid, device);
	return only_own(REAL(nvmlDeviceGetHandleByUUIDV, uuid, device ? &d : NULL), d, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *device)
{
	nvmlDevice_t d;

	PASS_NESTED(nvmlDeviceGetHandleByPciBusId, id, device);
	return only_own(REAL(nvmlDeviceGetHandleByPciBusId, id, device ? &d : NULL), d, device);
}

nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *device)
{
	nvmlDevice_t d;

	PASS_NESTED(nvmlDeviceGetHandleByPciBusId_v2, id, device);
	return only_own(REAL(nvmlDeviceGetHandleByPciBusId_v2, id, device ? &d : NULL), d, device);
}

/* By looking at one after the other, as the lost GPU may be somebody else's. */
static nvmlReturn_t past_lost(const char *text, nvmlDevice_t *device)
{
	uint8_t wanted[16], uuid[16];
	char its[NVML_TEXT];
	unsigned total;
	nvmlDevice_t d;

	if (!vgpu_nvml_uuid(text, wanted) || REAL(nvmlDeviceGetCount_v2, &total) != NVML_SUCCESS)
		return NVML_ERROR_GPU_IS_LOST;
	for (unsigned i = 0; i < total; i++)
		if (REAL(nvmlDeviceGetHandleByIndex_v2, i, &d) == NVML_SUCCESS &&
		    REAL(nvmlDeviceGetUUID, d, its, sizeof(its)) == NVML_SUCCESS && vgpu_nvml_uuid(its, uuid) &&
		    memcmp(uuid, wanted, 16) == 0)
			return only_own(NVML_SUCCESS, d, device);
	return NVML_ERROR_GPU_IS_LOST;
}

nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device)
{
	nvmlDevice_t d;
	nvmlReturn_t r;

	PASS_NESTED(nvmlDeviceGetHandleByUUID, uuid, device);
	r = REAL(nvmlDeviceGetHandleByUUID, uuid, device ? &d : NULL);
	if (r == NVML_ERROR_GPU_IS_LOST && uuid && device)
		return past_lost(uuid, device);
	return only_own(r, d, device);
}
