/* SPDX-License-Identifier: Apache-2.0 */
/* Finding devices. CUDA_VISIBLE_DEVICES means nothing to NVML. */
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "nvml.h"

static void uuid_text(char out[48], const uint8_t u[16])
{
	snprintf(out, 48, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2], u[3], u[4],
		 u[5], u[6], u[7], u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

static nvmlReturn_t count(unsigned *n)
{
	nvmlReturn_t r = enter();

	if (r)
		return r;
	if (!n)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	*n = nvml.mc.m->gpus;
	return leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned int *n)
{
	return count(n);
}

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned int *n)
{
	return count(n);
}

static nvmlReturn_t by_index(unsigned i, nvmlDevice_t *out)
{
	nvmlReturn_t r = enter();

	if (r)
		return r;
	if (!out || i >= nvml.mc.m->gpus)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	if (atomic_load(&nvml.mc.m->gpu[i].is.lost))
		return leave(NVML_ERROR_GPU_IS_LOST);
	out->handle = &nvml.device[i];
	return leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned int i, nvmlDevice_t *out)
{
	return by_index(i, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned int i, nvmlDevice_t *out)
{
	return by_index(i, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *out)
{
	nvmlReturn_t r = enter();

	if (r)
		return r;
	if (!uuid || !out)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	/* "If any GPU has fallen off the bus", nvml.h: it looks at one after the other. */
	for (uint32_t i = 0; i < nvml.mc.m->gpus; i++)
		if (atomic_load(&nvml.mc.m->gpu[i].is.lost))
			return leave(NVML_ERROR_GPU_IS_LOST);
	for (uint32_t i = 0; i < nvml.mc.m->gpus; i++) {
		char text[48];

		uuid_text(text, nvml.mc.m->gpu[i].uuid);
		if (strcasecmp(text, uuid) == 0) {
			out->handle = &nvml.device[i];
			return leave(NVML_SUCCESS);
		}
	}
	return leave(NVML_ERROR_NOT_FOUND);
}

static nvmlReturn_t by_bus(const char *id, nvmlDevice_t *out)
{
	unsigned domain, bus, device;
	nvmlReturn_t r = enter();

	if (r)
		return r;
	if (!id || !out)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	if (sscanf(id, "%x:%x:%x", &domain, &bus, &device) != 3) {
		domain = 0;
		if (sscanf(id, "%x:%x", &bus, &device) != 2)
			return leave(NVML_ERROR_INVALID_ARGUMENT);
	}
	for (uint32_t i = 0; i < nvml.mc.m->gpus; i++)
		if (domain == 0 && device == 0 && nvml.mc.m->gpu[i].pci_bus == bus) {
			if (atomic_load(&nvml.mc.m->gpu[i].is.lost))
				return leave(NVML_ERROR_GPU_IS_LOST);
			out->handle = &nvml.device[i];
			return leave(NVML_SUCCESS);
		}
	return leave(NVML_ERROR_NOT_FOUND);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *id, nvmlDevice_t *out)
{
	return by_bus(id, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *id, nvmlDevice_t *out)
{
	return by_bus(id, out);
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t h, char *uuid, unsigned int length)
{
	struct sim_gpu *g;
	char text[48];
	nvmlReturn_t r = enter_device(h, &g, NULL);

	if (r)
		return r;
	uuid_text(text, g->uuid);
	return leave(give_text(uuid, length, text));
}

static nvmlReturn_t pci_info(nvmlDevice_t h, nvmlPciInfo_t *pci)
{
	struct sim_gpu *g;
	nvmlReturn_t r = enter_device(h, &g, NULL);

	if (r)
		return r;
	if (!pci)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	memset(pci, 0, sizeof(*pci));
	pci->bus = g->pci_bus;
	pci->pciDeviceId = 0x20b010de;
	snprintf(pci->busIdLegacy, sizeof(pci->busIdLegacy), "0000:%02X:00.0", g->pci_bus & 0xff);
	snprintf(pci->busId, sizeof(pci->busId), "00000000:%02X:00.0", g->pci_bus & 0xff);
	return leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t h, nvmlPciInfo_t *pci)
{
	return pci_info(h, pci);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t h, nvmlPciInfo_t *pci)
{
	return pci_info(h, pci);
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t h, nvmlPciInfo_t *pci)
{
	return pci_info(h, pci);
}
