/* SPDX-License-Identifier: Apache-2.0 */
/* Event sets. The only event is an injected fault, as an Xid. */
#include <stdlib.h>

#include "nvml.h"

#define KIND_OF_SET 0x53544553u

struct nvmlEventSet_st {
	uint32_t kind;
	bool registered[SIM_MAX_GPUS];
	uint32_t seen[SIM_MAX_GPUS]; /* faults of the GPU that were there, or were told */
};

static struct nvmlEventSet_st *set_of(nvmlEventSet_t h)
{
	return h.handle && h.handle->kind == KIND_OF_SET ? h.handle : NULL;
}

EXPORT nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *out)
{
	nvmlReturn_t r = enter();

	if (r)
		return r;
	if (!out)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	out->handle = calloc(1, sizeof(*out->handle));
	if (!out->handle)
		return leave(NVML_ERROR_MEMORY);
	out->handle->kind = KIND_OF_SET;
	return leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t h)
{
	struct nvmlEventSet_st *s = set_of(h);

	if (!s)
		return NVML_ERROR_INVALID_ARGUMENT;
	s->kind = 0;
	free(s);
	return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t h, unsigned long long *types)
{
	nvmlReturn_t r = enter_device(h, NULL, NULL);

	if (r)
		return r;
	if (!types)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	*types = nvmlEventTypeXidCriticalError | nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError;
	return leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t h, unsigned long long types, nvmlEventSet_t hs)
{
	const unsigned long long known =
		nvmlEventTypeXidCriticalError | nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError;
	struct nvmlEventSet_st *s = set_of(hs);
	struct sim_gpu *g;
	uint32_t i;
	nvmlReturn_t r = enter_device(h, &g, &i);

	if (r)
		return r;
	if (!s)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	if (types & ~known)
		return leave(NVML_ERROR_NOT_SUPPORTED);
	if (types & nvmlEventTypeXidCriticalError) {
		s->registered[i] = true;
		s->seen[i] = atomic_load(&g->xid_count);
	}
	return leave(NVML_SUCCESS);
}

static bool next_fault(struct nvmlEventSet_st *s, nvmlEventData_t *out)
{
	for (uint32_t i = 0; i < nvml.mc.m->gpus; i++) {
		struct sim_gpu *g = &nvml.mc.m->gpu[i];
		uint32_t n = atomic_load(&g->xid_count);

		if (!s->registered[i] || s->seen[i] == n)
			continue;
		if (n - s->seen[i] > SIM_XIDS)
			s->seen[i] = n - SIM_XIDS; /* older ones are overwritten */
		*out = (nvmlEventData_t){
			.device = { &nvml.device[i] }, .eventType = nvmlEventTypeXidCriticalError,
			.eventData = atomic_load(&g->xids[s->seen[i]++ % SIM_XIDS].xid),
			.gpuInstanceId = UINT32_MAX, .computeInstanceId = UINT32_MAX };
		return true;
	}
	return false;
}

/* Waits without the mutex; a set is used by one thread at a time. */
static nvmlReturn_t wait_event(nvmlEventSet_t h, nvmlEventData_t *out, unsigned timeout_ms)
{
	struct nvmlEventSet_st *s = set_of(h);
	uint64_t until = clock_ns() + (uint64_t)timeout_ms * 1000000;

	if (!s || !out)
		return NVML_ERROR_INVALID_ARGUMENT;
	for (;;) {
		nvmlReturn_t r = enter();

		if (r)
			return r;
		uint32_t faults = atomic_load(&nvml.mc.m->faults);
		_Atomic uint32_t *word = &nvml.mc.m->faults;
		bool there = next_fault(s, out);
		leave(NVML_SUCCESS);
		if (there)
			return NVML_SUCCESS;
		if (clock_ns() >= until)
			return NVML_ERROR_TIMEOUT;
		sim_futex_wait(word, faults, UINT32_MAX, until);
	}
}

EXPORT nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t h, nvmlEventData_t *out, unsigned int timeout_ms)
{
	return wait_event(h, out, timeout_ms);
}

EXPORT nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t h, nvmlEventData_t *out, unsigned int timeout_ms)
{
	return wait_event(h, out, timeout_ms);
}
