/* SPDX-License-Identifier: Apache-2.0 */
/* The board that a GPU is on: numbers, modes, what was counted on it. */
#include <stdio.h>
#include <string.h>

#include "nvml.h"

#define BAR1 (256ull << 20)

GET(nvmlDeviceGetBoardId, unsigned int, g->pci_bus << 8)
GET(nvmlDeviceGetMultiGpuBoard, unsigned int, 0)
GET(nvmlDeviceGetBusType, nvmlBusType_t, NVML_BUS_TYPE_PCIE)
GET(nvmlDeviceGetMemoryBusWidth, unsigned int, 5120)
GET(nvmlDeviceGetNumGpuCores, unsigned int, 6912)
GET(nvmlDeviceGetDisplayActive, nvmlEnableState_t, NVML_FEATURE_DISABLED)
GET(nvmlDeviceGetDisplayMode, nvmlEnableState_t, NVML_FEATURE_DISABLED)
GET(nvmlDeviceGetAccountingMode, nvmlEnableState_t, NVML_FEATURE_DISABLED)
GET(nvmlDeviceGetAccountingBufferSize, unsigned int, 4000)
GET(nvmlDeviceGetDefaultEccMode, nvmlEnableState_t, NVML_FEATURE_ENABLED)
GET(nvmlDeviceGetRowRemapperHistogram, nvmlRowRemapperHistogramValues_t, ((nvmlRowRemapperHistogramValues_t){ .max = 640 }))
GET(nvmlDeviceGetBAR1MemoryInfo, nvmlBAR1Memory_t, ((nvmlBAR1Memory_t){ BAR1, BAR1 - (1 << 20), 1 << 20 }))

#define TEXT(NAME, VALUE)                                                                                              \
	EXPORT nvmlReturn_t NAME(nvmlDevice_t h, char *text, unsigned int length)                                      \
	{                                                                                                              \
		nvmlReturn_t r = enter_device(h, NULL, NULL);                                                          \
                                                                                                                       \
		return r ? r : leave(give_text(text, length, VALUE));                                                  \
	}

TEXT(nvmlDeviceGetVbiosVersion, "92.00.00.00.00")
TEXT(nvmlDeviceGetBoardPartNumber, "900-00000-0000-000")
TEXT(nvmlDeviceGetInforomImageVersion, "G500.0200.00.00")

EXPORT nvmlReturn_t nvmlDeviceGetInforomVersion(nvmlDevice_t h, nvmlInforomObject_t object, char *text, unsigned int length)
{
	nvmlReturn_t r = enter_device(h, NULL, NULL);

	if (r)
		return r;
	if (object >= NVML_INFOROM_COUNT)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	return leave(object == NVML_INFOROM_POWER ? NVML_ERROR_NOT_SUPPORTED : give_text(text, length, "2.0"));
}

/* Thirteen digits of the UUID's first bytes. */
static void serial_text(char out[32], const uint8_t uuid[16])
{
	unsigned long long n = 0;

	for (int i = 0; i < 5; i++)
		n = n << 8 | uuid[i];
	snprintf(out, 32, "%013llu", n);
}

EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t h, char *serial, unsigned int length)
{
	struct sim_gpu *g;
	char text[32];
	nvmlReturn_t r = enter_device(h, &g, NULL);

	if (r)
		return r;
	serial_text(text, g->uuid);
	return leave(give_text(serial, length, text));
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *out)
{
	nvmlReturn_t r = enter();

	if (r)
		return r;
	if (!serial || !out)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	/* As with the UUID: a lost one is met on the way. */
	for (uint32_t i = 0; i < nvml.mc.m->gpus; i++)
		if (atomic_load(&nvml.mc.m->gpu[i].is.lost))
			return leave(NVML_ERROR_GPU_IS_LOST);
	for (uint32_t i = 0; i < nvml.mc.m->gpus; i++) {
		char text[32];

		serial_text(text, nvml.mc.m->gpu[i].uuid);
		if (strcmp(text, serial) == 0) {
			out->handle = &nvml.device[i];
			return leave(NVML_SUCCESS);
		}
	}
	return leave(NVML_ERROR_NOT_FOUND);
}

/* MIG has no instances here. */
EXPORT nvmlReturn_t nvmlDeviceGetMigDeviceHandleByIndex(nvmlDevice_t h, unsigned int index, nvmlDevice_t *out)
{
	struct sim_gpu *g;
	nvmlReturn_t r = enter_device(h, &g, NULL);

	(void)index;
	if (r)
		return r;
	if (!out)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	return leave(atomic_load(&g->is.mig) ? NVML_ERROR_NOT_FOUND : NVML_ERROR_NOT_SUPPORTED);
}

EXPORT nvmlReturn_t nvmlDeviceGetAccountingPids(nvmlDevice_t h, unsigned int *n, unsigned int *pids)
{
	nvmlReturn_t r = enter_device(h, NULL, NULL);

	(void)pids;
	if (r)
		return r;
	if (!n)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	*n = 0;
	return leave(NVML_SUCCESS);
}

static bool counter_ok(nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter)
{
	return type < NVML_MEMORY_ERROR_TYPE_COUNT && counter < NVML_ECC_COUNTER_TYPE_COUNT;
}

/* Injected errors are in the device's memory. */
EXPORT nvmlReturn_t nvmlDeviceGetMemoryErrorCounter(nvmlDevice_t h, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter,
						    nvmlMemoryLocation_t at, unsigned long long *n)
{
	struct sim_gpu *g;
	nvmlReturn_t r = enter_device(h, &g, NULL);

	if (r)
		return r;
	if (!n || !counter_ok(type, counter) || at >= NVML_MEMORY_LOCATION_COUNT)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	*n = type == NVML_MEMORY_ERROR_TYPE_UNCORRECTED && at == NVML_MEMORY_LOCATION_DRAM ? atomic_load(&g->is.uncorrected) : 0;
	return leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetDetailedEccErrors(nvmlDevice_t h, nvmlMemoryErrorType_t type, nvmlEccCounterType_t counter,
						   nvmlEccErrorCounts_t *counts)
{
	struct sim_gpu *g;
	nvmlReturn_t r = enter_device(h, &g, NULL);

	if (r)
		return r;
	if (!counts || !counter_ok(type, counter))
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	*counts = (nvmlEccErrorCounts_t){ 0 };
	if (type == NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
		counts->deviceMemory = atomic_load(&g->is.uncorrected);
	return leave(NVML_SUCCESS);
}

static nvmlReturn_t retired(nvmlDevice_t h, nvmlPageRetirementCause_t cause, unsigned *n)
{
	nvmlReturn_t r = enter_device(h, NULL, NULL);

	if (r)
		return r;
	if (!n || cause >= NVML_PAGE_RETIREMENT_CAUSE_COUNT)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	*n = 0;
	return leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages(nvmlDevice_t h, nvmlPageRetirementCause_t cause, unsigned int *n, unsigned long long *at)
{
	(void)at;
	return retired(h, cause, n);
}

EXPORT nvmlReturn_t nvmlDeviceGetRetiredPages_v2(nvmlDevice_t h, nvmlPageRetirementCause_t cause, unsigned int *n, unsigned long long *at,
						 unsigned long long *when)
{
	(void)at;
	(void)when;
	return retired(h, cause, n);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t h, nvmlPciInfoExt_t *pci)
{
	nvmlPciInfo_t p;
	nvmlReturn_t r;

	if (!pci)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (pci->version != VERSION(nvmlPciInfoExt_v1_t, 1u))
		return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
	r = nvmlDeviceGetPciInfo_v3(h, &p);
	if (r)
		return r;
	*pci = (nvmlPciInfoExt_t){ .version = pci->version, .domain = p.domain, .bus = p.bus, .device = p.device,
				   .pciDeviceId = p.pciDeviceId, .pciSubSystemId = p.pciSubSystemId, .baseClass = 3, .subClass = 2 };
	memcpy(pci->busId, p.busId, sizeof(pci->busId));
	return NVML_SUCCESS;
}

/* It reaches none of the system's memory that was not allocated for it. */
EXPORT nvmlReturn_t nvmlDeviceGetAddressingMode(nvmlDevice_t h, nvmlDeviceAddressingMode_t *mode)
{
	nvmlReturn_t r = enter_device(h, NULL, NULL);

	if (r)
		return r;
	if (!mode)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	if (mode->version != VERSION(nvmlDeviceAddressingMode_v1_t, 1u))
		return leave(NVML_ERROR_ARGUMENT_VERSION_MISMATCH);
	mode->value = 0; /* NVML_DEVICE_ADDRESSING_MODE_NONE */
	return leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlUnitGetCount(unsigned int *n)
{
	nvmlReturn_t r = enter();

	if (r)
		return r;
	if (!n)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	*n = 0;
	return leave(NVML_SUCCESS);
}
