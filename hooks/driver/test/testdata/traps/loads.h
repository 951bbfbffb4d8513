/* SPDX-License-Identifier: Apache-2.0 */
/* For traps that are not linked with the driver. */
#ifndef VGPU_TEST_LOADS_H
#define VGPU_TEST_LOADS_H

#include "../test.h"

#include <link.h>

/* Computes with a driver that was loaded in some way. */
static inline void compute_with(void *library)
{
	static const char ptx[] =
		".version 6.0\n.target sm_50\n.address_size 64\n"
		".visible .entry spin_us(.param .u32 spin_us_param_0)\n{\n\tret;\n}\n";
#define FIND(name) __typeof__(&name) p_##name = (__typeof__(&name))dlsym(library, #name); CHECK(p_##name)
	FIND(cuInit);
	FIND(cuDeviceGet);
	FIND(cuCtxCreate_v2);
	FIND(cuCtxDestroy_v2);
	FIND(cuModuleLoadData);
	FIND(cuModuleGetFunction);
	FIND(cuLaunchKernel);
	FIND(cuCtxSynchronize);
#undef FIND
	unsigned us = 50;
	void *arguments[] = { &us };
	CUcontext context;
	CUdevice device;
	CUmodule module;
	CUfunction f;

	OK(p_cuInit(0));
	OK(p_cuDeviceGet(&device, 0));
	OK(p_cuCtxCreate_v2(&context, 0, device));
	OK(p_cuModuleLoadData(&module, ptx));
	OK(p_cuModuleGetFunction(&f, module, "spin_us"));
	for (int i = 0; i < 5; i++) {
		OK(p_cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
		OK(p_cuCtxSynchronize());
	}
	OK(p_cuCtxDestroy_v2(context));
}

static inline void *must_load(const char *name, int flags)
{
	void *library = dlopen(name, flags);

	if (!library)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(library);
	return library;
}

#endif
