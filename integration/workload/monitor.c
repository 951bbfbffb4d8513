/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What NVML shows, as a monitor finds it: everything by dlsym.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../hooks/driver/nvml/nvml_abi.h"

static void *lib;

static int (*find(const char *name))()
{
	int (*f)() = (int (*)())dlsym(lib, name);

	if (!f) {
		fprintf(stderr, "monitor: no %s\n", name);
		exit(1);
	}
	return f;
}

#define OK(name, ...)                                                                                                  \
	do {                                                                                                           \
		int r_ = find(name)(__VA_ARGS__);                                                                      \
                                                                                                                       \
		if (r_ != NVML_SUCCESS) {                                                                              \
			fprintf(stderr, "monitor: %s: error %d\n", name, r_);                                         \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

static void show(void)
{
	unsigned n, processes;
	nvmlDevice_t d;
	nvmlMemory_t m;
	nvmlMemory_v2_t m2 = { .version = sizeof(m2) | 2u << 24 }; /* as NVML numbers versions */
	nvmlUtilization_t u;
	nvmlProcessInfo_t infos[64];
	char uuid[96], name[96];

	OK("nvmlDeviceGetCount_v2", &n);
	printf("count %u\n", n);
	for (unsigned i = 0; i < n; i++) {
		OK("nvmlDeviceGetHandleByIndex_v2", i, &d);
		OK("nvmlDeviceGetUUID", d, uuid, (unsigned)sizeof(uuid));
		OK("nvmlDeviceGetName", d, name, (unsigned)sizeof(name));
		OK("nvmlDeviceGetMemoryInfo", d, &m);
		OK("nvmlDeviceGetMemoryInfo_v2", d, &m2);
		OK("nvmlDeviceGetUtilizationRates", d, &u);
		processes = 64;
		OK("nvmlDeviceGetComputeRunningProcesses_v3", d, &processes, infos);
		printf("uuid %s\nname %s\nmemory %llu %llu %llu\nmemory2 %llu %llu %llu %llu\nuse %u\nprocesses %u\n", uuid, name,
		       m.total, m.used, m.free, m2.total, m2.used, m2.free, m2.reserved, u.gpu, processes);
		for (unsigned j = 0; j < processes; j++)
			printf("pid %u %llu\n", infos[j].pid, infos[j].usedGpuMemory);
	}
	fflush(stdout);
}

int main(void)
{
	lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	if (!lib) {
		fprintf(stderr, "monitor: %s\n", dlerror());
		return 1;
	}
	OK("nvmlInit_v2");
	show();
	return 0;
}
