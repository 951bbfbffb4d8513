/* SPDX-License-Identifier: Apache-2.0 */
/* The simulated NVML: what its files share. It looks at the machine and changes nothing. */
#ifndef SIMGPU_NVML_H
#define SIMGPU_NVML_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "../machine/machine.h"
#include "nvml_abi.h"

#define EXPORT __attribute__((visibility("default")))

/* Of processes that are not there: no real pid is that large. */
#define MPS_SERVER_PID (1u << 30)
#define MPS_CLIENT_PID (MPS_SERVER_PID + 1)

struct nvmlDevice_st {
	uint32_t index;
};

struct state {
	pthread_mutex_t lock;
	unsigned inits; /* how often nvmlInit is not yet undone */
	struct machine mc;
	struct nvmlDevice_st device[SIM_MAX_GPUS];
};

extern struct state nvml;

/*
 * Holds the mutex on success, until leave. The handle is checked by address, so
 * a wild one is never read. A lost GPU is an error, a hanging one keeps us.
 */
nvmlReturn_t enter(void);
nvmlReturn_t enter_device(nvmlDevice_t h, struct sim_gpu **gpu, uint32_t *index);
static inline nvmlReturn_t leave(nvmlReturn_t r)
{
	pthread_mutex_unlock(&nvml.lock);
	return r;
}
/* Copies text into the caller's buffer, INSUFFICIENT_SIZE if it is too long. */
nvmlReturn_t give_text(char *to, unsigned room, const char *text);

/* One value, which needs no more than a living handle. */
#define GET(NAME, TYPE, VALUE)                                                                                         \
	EXPORT nvmlReturn_t NAME(nvmlDevice_t h, TYPE *out)                                                            \
	{                                                                                                              \
		struct sim_gpu *g;                                                                                     \
		uint32_t index;                                                                                        \
		nvmlReturn_t r = enter_device(h, &g, &index);                                                          \
                                                                                                                       \
		(void)g;                                                                                               \
		(void)index;                                                                                           \
		if (r)                                                                                                 \
			return r;                                                                                      \
		if (!out)                                                                                              \
			return leave(NVML_ERROR_INVALID_ARGUMENT);                                                     \
		*out = VALUE;                                                                                          \
		return leave(NVML_SUCCESS);                                                                            \
	}

/* Two values. */
#define GET2(NAME, TYPE, VALUE1, VALUE2)                                                                               \
	EXPORT nvmlReturn_t NAME(nvmlDevice_t h, TYPE *first, TYPE *second)                                            \
	{                                                                                                              \
		nvmlReturn_t r = enter_device(h, NULL, NULL);                                                          \
                                                                                                                       \
		if (r)                                                                                                 \
			return r;                                                                                      \
		if (!first || !second)                                                                                 \
			return leave(NVML_ERROR_INVALID_ARGUMENT);                                                     \
		*first = VALUE1;                                                                                       \
		*second = VALUE2;                                                                                      \
		return leave(NVML_SUCCESS);                                                                            \
	}

/* A struct's version: its size in the low bits, the number in the top byte. */
#define VERSION(TYPE, N) (sizeof(TYPE) | (N) << 24)

/* sensors.c */
#define POWER_MW 60000u
#define POWER_LIMIT_MW 400000u
unsigned long long energy_mj(void);

#endif
