/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the take-over of libnvidia-ml share.
 *
 * Handles are the real library's; nothing is translated. A function of ours asks
 * the real one first, whose errors stand (not initialised, lost, no such
 * argument), and replaces what is not the vGPU's own in its answer.
 */
#ifndef VGPU_NVML_H
#define VGPU_NVML_H

#include <stdbool.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#include "nvml_abi.h"
#pragma GCC visibility pop

#include "../../gate/observe.h"
#include "../../gate/tls.h"
#include "gen/names.h"

/* More than NVML's own limits, so that what the real library says always fits. */
#define NVML_TEXT    128
#define NVML_DEVICES 64

/* Real addresses, or the lazy part of a trampoline, as in ../driver.h. */
extern void *vgpu_real[VGPU_NAMES];
void *vgpu_resolve(unsigned name);

/* Inside a real call of this thread: what the real library calls of our exports
 * goes straight back to it. */
extern VGPU_TLS unsigned vgpu_nested;

/* Relaxed: both values lead to the same function. */
#define VGPU_REAL(name) ((__typeof__(&name))__atomic_load_n(&vgpu_real[VGPU_NAME_##name], __ATOMIC_RELAXED))
/* Calls the real function of a name. */
#define REAL(name, ...)                                                                                                \
	({                                                                                                             \
		nvmlReturn_t real_;                                                                                    \
                                                                                                                       \
		vgpu_nested++;                                                                                         \
		real_ = VGPU_REAL(name)(__VA_ARGS__);                                                                  \
		vgpu_nested--;                                                                                         \
		real_;                                                                                                 \
	})
/* First in each function of ours. */
#define PASS_NESTED(name, ...)                                                                                         \
	do {                                                                                                           \
		if (vgpu_nested)                                                                                       \
			return VGPU_REAL(name)(__VA_ARGS__);                                                           \
	} while (0)

/* init.c: how often nvmlInit is not yet undone. */
extern _Atomic unsigned vgpu_nvml_inits;

/* identity.c */
/* Who the vGPU is; with bind, after it was bound. */
nvmlReturn_t vgpu_nvml_identity(bool bind, struct vgpu_identity *identity);
/* The GPU behind a handle, of the vGPU's own; INVALID_ARGUMENT for others. */
nvmlReturn_t vgpu_nvml_own(nvmlDevice_t device, uint8_t uuid[16]);
/* Whether a device is one of them. */
bool vgpu_nvml_is_own(const struct vgpu_identity *identity, nvmlDevice_t device);
/* What is used of the GPU behind a handle. list as in observe.h. */
nvmlReturn_t vgpu_nvml_usage(nvmlDevice_t device, struct vgpu_usage *usage, struct vgpu_process **list);
/* Reads "GPU-" and hexadecimal digits. */
bool vgpu_nvml_uuid(const char *text, uint8_t uuid[16]);

#endif
