/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pids KERNELS NVML: the pids that NVML tells of the first GPU, after NVML was
 * shut down and opened again in a process that uses the GPU; then an empty line.
 * Goes on until its input ends.
 */
#include "test.h"
#include <dlfcn.h>

struct info {
	unsigned pid;
	unsigned long long used;
	unsigned instance, compute;
};

static void *nvml;

static int call(const char *name)
{
	int (*fn)(void) = (int (*)(void))dlsym(nvml, name);

	CHECK(fn);
	return fn();
}

int main(int argc, char **argv)
{
	struct info infos[16];
	unsigned n = 16;
	void *device;

	begin(argc, argv, 0);
	CHECK(argc == 3);
	nvml = dlopen(argv[2], RTLD_NOW);
	CHECK(nvml);
	CHECK(call("nvmlInit_v2") == 0 && call("nvmlShutdown") == 0 && call("nvmlInit_v2") == 0);
	int (*get)(unsigned, void **) = (int (*)(unsigned, void **))dlsym(nvml, "nvmlDeviceGetHandleByIndex_v2");
	int (*list)(void *, unsigned *, struct info *) =
		(int (*)(void *, unsigned *, struct info *))dlsym(nvml, "nvmlDeviceGetComputeRunningProcesses_v3");
	CHECK(get && list && get(0, &device) == 0 && list(device, &n, infos) == 0);
	for (unsigned i = 0; i < n; i++)
		printf("%u\n", infos[i].pid);
	puts("");
	fflush(stdout);
	while (getchar() != EOF)
		;
	return 0;
}
