/* SPDX-License-Identifier: Apache-2.0 */
/* Event sets: Xids and double-bit ECC errors. */
#include <stdlib.h>

#include "nvml.h"

#define KIND_OF_SET 0x53544553u
#define KNOWN (nvmlEventTypeXidCriticalError | nvmlEventTypeSingleBitEccError | nvmlEventTypeDoubleBitEccError)

_Static_assert(SIM_EVENT_XID == nvmlEventTypeXidCriticalError, "the machine numbers them as NVML does");
_Static_assert(SIM_EVENT_DOUBLE_BIT == nvmlEventTypeDoubleBitEccError, "likewise");

struct nvmlEventSet_st {
	uint32_t kind;
	uint64_t types[SIM_MAX_GPUS]; /* that are registered */
	uint32_t seen[SIM_MAX_GPUS];  /* events of the GPU that were there, or were told */
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
	struct sim_gpu *g;
	nvmlReturn_t r = enter_device(h, &g, NULL);

	if (r)
		return r;
	if (!types)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	*types = atomic_load(&g->is.no_events) ? nvmlEventTypeNone : KNOWN;
	return leave(NVML_SUCCESS);
}

EXPORT nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t h, unsigned long long types, nvmlEventSet_t hs)
{
	struct nvmlEventSet_st *s = set_of(hs);
	struct sim_gpu *g;
	uint32_t i;
	nvmlReturn_t r = enter_device(h, &g, &i);

	if (r)
		return r;
	if (!s)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	if (types & ~KNOWN || atomic_load(&g->is.no_events))
		return leave(NVML_ERROR_NOT_SUPPORTED);
	if (!s->types[i])
		s->seen[i] = atomic_load(&g->events);
	s->types[i] |= types;
	return leave(NVML_SUCCESS);
}

/* The next event of a GPU that the set wants. */
static bool next_of(struct nvmlEventSet_st *s, uint32_t i, nvmlEventData_t *out)
{
	struct sim_gpu *g = &nvml.mc.m->gpu[i];

	while (s->types[i] && s->seen[i] != atomic_load(&g->events)) {
		if (atomic_load(&g->events) - s->seen[i] > SIM_EVENTS)
			s->seen[i] = atomic_load(&g->events) - SIM_EVENTS; /* older ones are overwritten */
		const struct sim_event *e = &g->event[s->seen[i] % SIM_EVENTS];

		if (atomic_load(&e->number) != s->seen[i] + 1)
			return false; /* it is being written: its writer wakes us */
		uint32_t type = atomic_load(&e->type);
		uint64_t data = atomic_load(&e->data);
		s->seen[i]++;
		if (!(s->types[i] & type))
			continue;
		*out = (nvmlEventData_t){
			.device = { &nvml.device[i] }, .eventType = type, .eventData = data,
			.gpuInstanceId = UINT32_MAX, .computeInstanceId = UINT32_MAX };
		return true;
	}
	return false;
}

/* TIMEOUT: there is nothing to tell now. */
static nvmlReturn_t next_event(struct nvmlEventSet_st *s, nvmlEventData_t *out)
{
	nvmlReturn_t r = NVML_ERROR_TIMEOUT;

	for (uint32_t i = 0; i < nvml.mc.m->gpus; i++) {
		if (next_of(s, i, out))
			return NVML_SUCCESS;
		/* Once what came before is told: nothing more comes from a set with a lost GPU. */
		if (s->types[i] && atomic_load(&nvml.mc.m->gpu[i].is.lost))
			r = NVML_ERROR_GPU_IS_LOST;
	}
	return r;
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
		_Atomic uint32_t *word = &nvml.mc.m->changes;
		uint32_t seen = atomic_load(word);
		r = leave(next_event(s, out));
		if (r != NVML_ERROR_TIMEOUT || clock_ns() >= until)
			return r;
		sim_futex_wait(word, seen, UINT32_MAX, until);
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
