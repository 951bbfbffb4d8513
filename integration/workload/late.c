/* SPDX-License-Identifier: Apache-2.0 */
/*
 * late: looks for the driver only when it runs, by dlopen, as frameworks do.
 *
 *   late BURSTS
 *
 * Bursts of 10 kernels of 500 us each, waited for; 0: until it is killed. Prints
 * "running" after the first one and "done" after the last.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "cuda_abi.h"

#define KERNEL "/vgpu/spin_us.ptx"

static void *lib;

static void *find(const char *name)
{
	void *p = dlsym(lib, name);

	if (!p) {
		fprintf(stderr, "late: no %s\n", name);
		exit(1);
	}
	return p;
}

#define CALL(name, ...)                                                                                                \
	do {                                                                                                           \
		int r_ = ((__typeof__(&name))find(#name))(__VA_ARGS__);                                                \
                                                                                                                       \
		if (r_ != CUDA_SUCCESS) {                                                                              \
			fprintf(stderr, "late: %s: error %d\n", #name, r_);                                            \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

static CUfunction kernel(void)
{
	static char text[1 << 16];
	FILE *f = fopen(KERNEL, "rb");
	CUfunction function;
	CUmodule module;

	if (!f || fread(text, 1, sizeof(text) - 1, f) == 0) {
		fprintf(stderr, "late: failed to read " KERNEL "\n");
		exit(1);
	}
	fclose(f);
	CALL(cuModuleLoadData, &module, text);
	CALL(cuModuleGetFunction, &function, module, "spin_us");
	return function;
}

static void say(const char *word)
{
	printf("%s\n", word);
	fflush(stdout);
}

int main(int argc, char **argv)
{
	unsigned long bursts = argc == 2 ? strtoul(argv[1], NULL, 10) : 1;
	unsigned us = 500;
	void *params[] = { &us };
	CUcontext context;
	CUfunction spin;
	CUdevice device;
	CUstream stream;

	lib = dlopen("libcuda.so.1", RTLD_NOW);
	if (!lib) {
		fprintf(stderr, "late: %s\n", dlerror());
		return 1;
	}
	CALL(cuInit, 0);
	CALL(cuDeviceGet, &device, 0);
	CALL(cuDevicePrimaryCtxRetain, &context, device);
	CALL(cuCtxSetCurrent, context);
	spin = kernel();
	CALL(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);
	for (unsigned long b = 0; !bursts || b < bursts; b++) {
		for (int i = 0; i < 10; i++)
			CALL(cuLaunchKernel, spin, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL);
		CALL(cuStreamSynchronize, stream);
		if (b == 0)
			say("running");
	}
	say("done");
	return 0;
}
