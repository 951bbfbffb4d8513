/* SPDX-License-Identifier: Apache-2.0 */
/* The hooked names: generated functions around the calls of driver.h. */
#include "driver.h"
#include "memory.h"

#include "gen/hooks.inc"

const struct vgpu_name_row vgpu_names[VGPU_NAMES] = {
#include "gen/names.inc"
};
