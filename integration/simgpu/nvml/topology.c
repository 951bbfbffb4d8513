/* SPDX-License-Identifier: Apache-2.0 */
/* How GPUs lie to each other and to the processors: all on one host bridge of one node. */
#include <string.h>
#include <unistd.h>

#include "nvml.h"

#define BITS (8 * sizeof(unsigned long))

/* Both devices, or an error. */
static nvmlReturn_t enter_both(nvmlDevice_t a, nvmlDevice_t b, uint32_t *i, uint32_t *k)
{
	nvmlReturn_t r = enter_device(a, NULL, i);

	if (r)
		return r;
	leave(r);
	return enter_device(b, NULL, k);
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyCommonAncestor(nvmlDevice_t a, nvmlDevice_t b, nvmlGpuTopologyLevel_t *level)
{
	uint32_t i, k;
	nvmlReturn_t r = enter_both(a, b, &i, &k);

	if (r)
		return r;
	if (!level)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	*level = i == k ? NVML_TOPOLOGY_INTERNAL : NVML_TOPOLOGY_HOSTBRIDGE;
	return leave(NVML_SUCCESS);
}

/* All GPUs but one, or all; *n is the room, then how many. */
static nvmlReturn_t give_devices(uint32_t but, unsigned *n, nvmlDevice_t *out)
{
	unsigned room = *n, found = 0;

	for (uint32_t i = 0; i < nvml.mc.m->gpus; i++) {
		if (i == but)
			continue;
		if (out && found < room)
			out[found].handle = &nvml.device[i];
		found++;
	}
	*n = out && room < found ? room : found;
	return leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetTopologyNearestGpus(nvmlDevice_t h, nvmlGpuTopologyLevel_t level, unsigned int *n, nvmlDevice_t *out)
{
	uint32_t i;
	nvmlReturn_t r = enter_device(h, NULL, &i);

	if (r)
		return r;
	if (!n)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	if (level == NVML_TOPOLOGY_HOSTBRIDGE)
		return give_devices(i, n, out);
	*n = 0;
	return leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlSystemGetTopologyGpuSet(unsigned int cpu, unsigned int *n, nvmlDevice_t *out)
{
	nvmlReturn_t r = enter();

	if (r)
		return r;
	if (!n || cpu >= (unsigned long)sysconf(_SC_NPROCESSORS_CONF))
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	return give_devices(UINT32_MAX, n, out);
}

/* As the driver library has it: memory of each other, no atomics, no NVLink. */
EXPORT nvmlReturn_t nvmlDeviceGetP2PStatus(nvmlDevice_t a, nvmlDevice_t b, nvmlGpuP2PCapsIndex_t what, nvmlGpuP2PStatus_t *status)
{
	uint32_t i, k;
	nvmlReturn_t r = enter_both(a, b, &i, &k);

	if (r)
		return r;
	if (!status || what >= NVML_P2P_CAPS_INDEX_UNKNOWN)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	bool can = what == NVML_P2P_CAPS_INDEX_READ || what == NVML_P2P_CAPS_INDEX_WRITE || what == NVML_P2P_CAPS_INDEX_PCI;
	*status = can && i != k ? NVML_P2P_STATUS_OK : NVML_P2P_STATUS_NOT_SUPPORTED;
	return leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceOnSameBoard(nvmlDevice_t a, nvmlDevice_t b, int *same)
{
	uint32_t i, k;
	nvmlReturn_t r = enter_both(a, b, &i, &k);

	if (r)
		return r;
	if (!same)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	*same = i == k;
	return leave(NVML_SUCCESS);
}

/* The first n bits of a set. */
static nvmlReturn_t bits(nvmlDevice_t h, unsigned size, unsigned long *set, unsigned long n)
{
	nvmlReturn_t r = enter_device(h, NULL, NULL);

	if (r)
		return r;
	if (!size || !set)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	memset(set, 0, size * sizeof(*set));
	for (unsigned long i = 0; i < n && i < size * BITS; i++)
		set[i / BITS] |= 1ul << i % BITS;
	return leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinity(nvmlDevice_t h, unsigned int size, unsigned long *set)
{
	return bits(h, size, set, (unsigned long)sysconf(_SC_NPROCESSORS_CONF));
}

EXPORT nvmlReturn_t nvmlDeviceGetCpuAffinityWithinScope(nvmlDevice_t h, unsigned int size, unsigned long *set, nvmlAffinityScope_t scope)
{
	return scope <= 1 ? bits(h, size, set, (unsigned long)sysconf(_SC_NPROCESSORS_CONF)) : NVML_ERROR_INVALID_ARGUMENT;
}

EXPORT nvmlReturn_t nvmlDeviceGetMemoryAffinity(nvmlDevice_t h, unsigned int size, unsigned long *set, nvmlAffinityScope_t scope)
{
	return scope <= 1 ? bits(h, size, set, 1) : NVML_ERROR_INVALID_ARGUMENT;
}
