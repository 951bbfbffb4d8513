/* SPDX-License-Identifier: Apache-2.0 */
/* Process lists as programs ask for them: first how many, then all. */
#include "test.h"

_Static_assert(sizeof(nvmlProcessInfo_v1_t) == 16, "the first form");
_Static_assert(sizeof(nvmlProcessInfo_v2_t) == 24 && sizeof(nvmlProcessInfo_t) == 24, "the later ones");

static nvmlDevice_t d;

/* Asks for all, and for one too few if there are any. Every byte behind the
 * entries stays as it was. */
#define LIST(NAME, TYPE, MORE)                                                                                         \
	do {                                                                                                           \
		unsigned n = 0, all, few;                                                                              \
		nvmlReturn_t first = NAME(d, &n, NULL);                                                                \
		TYPE *infos;                                                                                           \
                                                                                                                       \
		CHECK(first == (n ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS));                                     \
		IS(NVML_ERROR_INVALID_ARGUMENT, NAME(d, NULL, NULL));                                                  \
		all = n;                                                                                               \
		infos = malloc((all + 1) * sizeof(*infos));                                                            \
		memset(infos, 0x5a, (all + 1) * sizeof(*infos));                                                       \
		if (all > 0) {                                                                                         \
			few = all - 1;                                                                                 \
			IS(NVML_ERROR_INSUFFICIENT_SIZE, NAME(d, &few, infos));                                        \
			CHECK(few == all && infos[0].pid == 0x5a5a5a5a);                                               \
			few = UINT32_MAX;                                                                              \
			IS(NVML_ERROR_INVALID_ARGUMENT, NAME(d, &few, NULL));                                          \
		}                                                                                                      \
		n = UINT32_MAX; /* more than there is room for, but no more is used */                                 \
		OK(NAME(d, &n, infos));                                                                                \
		CHECK(n == all && infos[all].pid == 0x5a5a5a5a);                                                       \
		say("%s %u", #NAME, n);                                                                                \
		for (unsigned i = 0; i < n; i++) {                                                                     \
			MORE;                                                                                          \
			if (i < 2)                                                                                     \
				say("%u %llu", infos[i].pid, infos[i].usedGpuMemory);                                  \
		}                                                                                                      \
		free(infos);                                                                                           \
	} while (0)

static void detail(unsigned mode)
{
	nvmlProcessDetail_v1_t room[64];
	nvmlProcessDetailList_t list = { .version = sizeof(list) | 1u << 24, .mode = mode };
	nvmlReturn_t r = nvmlDeviceGetRunningProcessDetailList(d, &list);

	CHECK(r == (list.numProcArrayEntries ? NVML_ERROR_INSUFFICIENT_SIZE : NVML_SUCCESS));
	list.numProcArrayEntries = 64;
	list.procArray = room;
	OK(nvmlDeviceGetRunningProcessDetailList(d, &list));
	say("detail %u %u", mode, list.numProcArrayEntries);
	list.version++;
	IS(NVML_ERROR_ARGUMENT_VERSION_MISMATCH, nvmlDeviceGetRunningProcessDetailList(d, &list));
}

int main(void)
{
	char name[64];

	IS(NVML_ERROR_UNINITIALIZED, nvmlSystemGetProcessName((unsigned)getpid(), name, sizeof(name)));
	OK(nvmlInit_v2());
	d = device(0);
	LIST(nvmlDeviceGetComputeRunningProcesses, nvmlProcessInfo_v1_t, );
	LIST(nvmlDeviceGetComputeRunningProcesses_v2, nvmlProcessInfo_v2_t, CHECK(infos[i].gpuInstanceId == UINT32_MAX));
	LIST(nvmlDeviceGetComputeRunningProcesses_v3, nvmlProcessInfo_t, CHECK(infos[i].computeInstanceId == UINT32_MAX));
	LIST(nvmlDeviceGetGraphicsRunningProcesses, nvmlProcessInfo_v1_t, );
	LIST(nvmlDeviceGetGraphicsRunningProcesses_v2, nvmlProcessInfo_v2_t, );
	LIST(nvmlDeviceGetGraphicsRunningProcesses_v3, nvmlProcessInfo_t, );
	LIST(nvmlDeviceGetMPSComputeRunningProcesses, nvmlProcessInfo_v1_t, );
	LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, nvmlProcessInfo_t, );
	detail(NVML_PROCESS_MODE_COMPUTE);
	detail(NVML_PROCESS_MODE_GRAPHICS);
	OK(nvmlSystemGetProcessName((unsigned)getpid(), name, sizeof(name)));
	CHECK(strstr(name, "/processes"));
	OK(nvmlSystemGetProcessName((unsigned)getpid(), name, 3)); /* cropped */
	CHECK(strlen(name) == 2);
	IS(NVML_ERROR_NOT_FOUND, nvmlSystemGetProcessName(1u << 30, name, sizeof(name)));
	IS(NVML_ERROR_INVALID_ARGUMENT, nvmlSystemGetProcessName(1, NULL, 1));
	IS(NVML_ERROR_INVALID_ARGUMENT, nvmlSystemGetProcessName(1, name, 0));
	say("done");
	return 0;
}
