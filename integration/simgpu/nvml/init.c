/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "nvml.h"

struct state nvml = { .lock = PTHREAD_MUTEX_INITIALIZER };

static nvmlReturn_t init(void)
{
	nvmlReturn_t r = NVML_SUCCESS;

	pthread_mutex_lock(&nvml.lock);
	if (nvml.inits == 0 && machine_open(&nvml.mc, machine_dir()) != 0)
		r = NVML_ERROR_DRIVER_NOT_LOADED;
	if (!r) {
		nvml.inits++;
		for (uint32_t i = 0; i < SIM_MAX_GPUS; i++)
			nvml.device[i].index = i;
	}
	pthread_mutex_unlock(&nvml.lock);
	return r;
}

EXPORT nvmlReturn_t nvmlInit(void)
{
	return init();
}

EXPORT nvmlReturn_t nvmlInit_v2(void)
{
	return init();
}

EXPORT nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	(void)flags;
	return init();
}

EXPORT nvmlReturn_t nvmlShutdown(void)
{
	nvmlReturn_t r = enter();

	if (r)
		return r;
	if (--nvml.inits == 0)
		machine_close(&nvml.mc);
	return leave(NVML_SUCCESS);
}

nvmlReturn_t enter(void)
{
	pthread_mutex_lock(&nvml.lock);
	return nvml.inits ? NVML_SUCCESS : leave(NVML_ERROR_UNINITIALIZED);
}

/* Waits without the mutex while the GPU hangs: others go on meanwhile. Holds it on success. */
static nvmlReturn_t wait_hang(uint32_t gpu)
{
	for (;;) {
		_Atomic uint32_t *word = &nvml.mc.m->changes;
		uint32_t seen = atomic_load(word);

		if (!atomic_load(&nvml.mc.m->gpu[gpu].is.hang))
			return NVML_SUCCESS;
		leave(NVML_SUCCESS);
		sim_futex_wait(word, seen, UINT32_MAX, UINT64_MAX / 2);
		nvmlReturn_t r = enter();
		if (r)
			return r;
	}
}

nvmlReturn_t enter_device(nvmlDevice_t h, struct sim_gpu **gpu, uint32_t *index)
{
	nvmlReturn_t r = enter();
	uint32_t i = 0;

	if (r)
		return r;
	while (i < nvml.mc.m->gpus && h.handle != &nvml.device[i])
		i++;
	if (i == nvml.mc.m->gpus)
		return leave(NVML_ERROR_INVALID_ARGUMENT);
	r = wait_hang(i);
	if (r)
		return r;
	if (atomic_load(&nvml.mc.m->gpu[i].is.lost))
		return leave(NVML_ERROR_GPU_IS_LOST);
	if (gpu)
		*gpu = &nvml.mc.m->gpu[i];
	if (index)
		*index = i;
	return NVML_SUCCESS;
}

nvmlReturn_t give_text(char *to, unsigned room, const char *text)
{
	if (!to)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (strlen(text) >= room)
		return NVML_ERROR_INSUFFICIENT_SIZE;
	strcpy(to, text);
	return NVML_SUCCESS;
}

EXPORT const char *nvmlErrorString(nvmlReturn_t r)
{
	static const struct {
		nvmlReturn_t result;
		const char *text;
	} texts[] = {
		{ NVML_SUCCESS, "Success" },
		{ NVML_ERROR_UNINITIALIZED, "Uninitialized" },
		{ NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument" },
		{ NVML_ERROR_NOT_SUPPORTED, "Not Supported" },
		{ NVML_ERROR_NO_PERMISSION, "Insufficient Permissions" },
		{ NVML_ERROR_NOT_FOUND, "Not Found" },
		{ NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size" },
		{ NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded" },
		{ NVML_ERROR_TIMEOUT, "Timeout" },
		{ NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found" },
		{ NVML_ERROR_GPU_IS_LOST, "GPU is lost" },
		{ NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument Version Mismatch" },
	};

	for (unsigned long i = 0; i < sizeof(texts) / sizeof(texts[0]); i++)
		if (texts[i].result == r)
			return texts[i].text;
	return "Unknown Error";
}
