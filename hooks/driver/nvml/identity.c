/* SPDX-License-Identifier: Apache-2.0 */
/* Whose GPUs these are, by what vgpud says. */
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "nvml.h"

/* Says once in a process what went wrong; the code is all that its caller gets. */
static nvmlReturn_t refuse(const struct vgpu_gate_error *err)
{
	static atomic_bool said;

	/* A signal handler's question may have interrupted who writes there. */
	if (err->errnum != EDEADLK && !atomic_exchange(&said, true))
		fprintf(stderr, "vgpu: %s\n", err->text);
	return err->code == VGPU_ERR_NO_GPU ? NVML_ERROR_INSUFFICIENT_RESOURCES : NVML_ERROR_UNKNOWN;
}

nvmlReturn_t vgpu_nvml_identity(bool bind, struct vgpu_identity *identity)
{
	struct vgpu_gate_error err;

	return vgpu_observe_identity(VGPU_DIR, bind, identity, &err) == 0 ? NVML_SUCCESS : refuse(&err);
}

static int digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

bool vgpu_nvml_uuid(const char *text, uint8_t uuid[16])
{
	unsigned n = 0;

	if (strncmp(text, "GPU-", 4) != 0)
		return false;
	for (text += 4; *text; text++) {
		int d = digit(*text);

		if (*text == '-')
			continue;
		if (d < 0 || n == 32)
			return false;
		uuid[n / 2] = (uint8_t)(n % 2 ? uuid[n / 2] | d : d << 4);
		n++;
	}
	return n == 32;
}

static bool is_bound(const struct vgpu_identity *identity, const uint8_t uuid[16])
{
	for (uint32_t i = 0; i < identity->count; i++)
		if (memcmp(identity->uuid[i], uuid, 16) == 0)
			return true;
	return false;
}

bool vgpu_nvml_is_own(const struct vgpu_identity *identity, nvmlDevice_t device)
{
	char text[NVML_TEXT];
	uint8_t uuid[16];

	return REAL(nvmlDeviceGetUUID, device, text, sizeof(text)) == NVML_SUCCESS && vgpu_nvml_uuid(text, uuid) &&
	       is_bound(identity, uuid);
}

nvmlReturn_t vgpu_nvml_own(nvmlDevice_t device, uint8_t uuid[16])
{
	struct vgpu_identity identity;
	char text[NVML_TEXT];
	nvmlReturn_t r;

	r = REAL(nvmlDeviceGetUUID, device, text, sizeof(text));
	if (r == NVML_SUCCESS)
		r = vgpu_nvml_identity(true, &identity);
	if (r != NVML_SUCCESS)
		return r;
	return vgpu_nvml_uuid(text, uuid) && is_bound(&identity, uuid) ? NVML_SUCCESS : NVML_ERROR_INVALID_ARGUMENT;
}

nvmlReturn_t vgpu_nvml_usage(nvmlDevice_t device, struct vgpu_usage *usage, struct vgpu_process **list)
{
	struct vgpu_gate_error err;
	uint8_t uuid[16];
	nvmlReturn_t r = vgpu_nvml_own(device, uuid);

	if (r != NVML_SUCCESS)
		return r;
	return vgpu_observe_usage(VGPU_DIR, uuid, usage, list, &err) == 0 ? NVML_SUCCESS : refuse(&err);
}
