/* SPDX-License-Identifier: Apache-2.0 */
/* Lists the devices by all ways to find one. Arguments: UUIDs and PCI bus ids
 * that are not to be found. */
#include "test.h"

/* The members that nvmlPciInfo_t begins with, and room for the rest. */
struct pci {
	char legacy[16];
	unsigned domain, bus, device, ids[2];
	char bus_id[32];
	char room[64];
};

int main(int argc, char **argv)
{
	int (*pci_info)(nvmlDevice_t, struct pci *);
	int (*minor_number)(nvmlDevice_t, unsigned *);
	int (*ecc_mode)(nvmlDevice_t, int *, int *);
	unsigned n, index, minor;
	char uuid[96], name[96];
	struct pci pci = { 0 };
	nvmlDevice_t d, again;
	int ecc[2];

	IS(NVML_ERROR_UNINITIALIZED, nvmlDeviceGetCount_v2(&n));
	IS(NVML_ERROR_UNINITIALIZED, nvmlDeviceGetHandleByIndex_v2(0, &d));
	OK(nvmlInit_v2());
	pci_info = (void *)named("nvmlDeviceGetPciInfo_v3");
	minor_number = (void *)named("nvmlDeviceGetMinorNumber");
	ecc_mode = (void *)named("nvmlDeviceGetEccMode");
	OK(nvmlDeviceGetCount_v2(&n));
	OK(nvmlDeviceGetCount(&index));
	CHECK(n == index);
	say("count %u", n);
	for (unsigned i = 0; i < n; i++) {
		d = device(i);
		OK(nvmlDeviceGetUUID(d, uuid, sizeof(uuid)));
		OK(pci_info(d, &pci));
		OK(nvmlDeviceGetName(d, name, sizeof(name)));
		IS(NVML_ERROR_INSUFFICIENT_SIZE, nvmlDeviceGetName(d, name, (unsigned)strlen(name)));
		OK(nvmlDeviceGetName(d, name, (unsigned)strlen(name) + 1));
		IS(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetName(d, NULL, 64));
		OK(nvmlDeviceGetIndex(d, &index));
		IS(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetIndex(d, NULL));
		OK(minor_number(d, &minor));
		OK(ecc_mode(d, &ecc[0], &ecc[1]));
		say("%s %s minor %u ecc %d", uuid, pci.bus_id, minor, ecc[0]);
		say("%u %s", index, name);
		OK(nvmlDeviceGetHandleByUUID(uuid, &again));
		CHECK(again.handle == d.handle);
		OK(nvmlDeviceGetHandleByPciBusId_v2(pci.bus_id, &again));
		CHECK(again.handle == d.handle);
		OK(nvmlDeviceGetHandleByPciBusId(pci.bus_id, &again));
		CHECK(again.handle == d.handle);
		OK(nvmlDeviceGetHandleByIndex(i, &again));
		CHECK(again.handle == d.handle);
	}
	IS(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetHandleByIndex_v2(n, &d));
	IS(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetHandleByIndex_v2(UINT32_MAX, &d));
	IS(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetHandleByIndex_v2(0, NULL));
	IS(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetCount_v2(NULL));
	IS(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetHandleByUUID(NULL, &d));
	IS(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetHandleByUUID(uuid, NULL));
	IS(NVML_ERROR_INVALID_ARGUMENT, nvmlDeviceGetHandleByPciBusId_v2(pci.bus_id, NULL));
	IS(NVML_ERROR_NOT_FOUND, nvmlDeviceGetHandleByUUID("GPU-0", &d));
	for (int i = 1; i < argc; i++) {
		if (strncmp(argv[i], "GPU-", 4) == 0)
			IS(NVML_ERROR_NOT_FOUND, nvmlDeviceGetHandleByUUID(argv[i], &d));
		else
			IS(NVML_ERROR_NOT_FOUND, nvmlDeviceGetHandleByPciBusId_v2(argv[i], &d));
	}
	/* Counted: the first of two shutdowns ends nothing. */
	OK(nvmlInit());
	OK(nvmlShutdown());
	OK(nvmlDeviceGetUUID(device(0), uuid, sizeof(uuid)));
	OK(nvmlShutdown());
	IS(NVML_ERROR_UNINITIALIZED, nvmlDeviceGetCount_v2(&n));
	IS(NVML_ERROR_UNINITIALIZED, nvmlShutdown());
	say("done");
	return 0;
}
