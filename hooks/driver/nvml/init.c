/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvmlInit asks vgpud nothing and binds nothing, and CUDA is never touched. The
 * last nvmlShutdown hangs up: what was told is not held to any more.
 */
#include <stdatomic.h>

#include "nvml.h"

_Atomic unsigned vgpu_nvml_inits;

static nvmlReturn_t begun(nvmlReturn_t r)
{
	if (r == NVML_SUCCESS)
		vgpu_nvml_inits++;
	return r;
}

nvmlReturn_t nvmlInit(void)
{
	PASS_NESTED(nvmlInit);
	return begun(REAL(nvmlInit));
}

nvmlReturn_t nvmlInit_v2(void)
{
	PASS_NESTED(nvmlInit_v2);
	return begun(REAL(nvmlInit_v2));
}

nvmlReturn_t nvmlInitWithFlags(unsigned int flags)
{
	PASS_NESTED(nvmlInitWithFlags, flags);
	return begun(REAL(nvmlInitWithFlags, flags));
}

nvmlReturn_t nvmlShutdown(void)
{
	unsigned n = vgpu_nvml_inits;
	nvmlReturn_t r;

	PASS_NESTED(nvmlShutdown);
	r = REAL(nvmlShutdown);
	if (r != NVML_SUCCESS)
		return r;
	/* The real library lets nobody undo more than was done. */
	while (n > 0 && !atomic_compare_exchange_weak(&vgpu_nvml_inits, &n, n - 1))
		;
	if (n == 1)
		vgpu_observe_end();
	return r;
}
