/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every name and class on stdin leads somewhere: ours and passed ones are found
 * by dlsym in our library, as nvidia-smi looks them up; passed ones, called with
 * nothing, say what the real library's say; the others refuse.
 */
#include "test.h"

typedef intptr_t any(void *, void *, void *, void *, void *, void *);

static void same(void *ours, void *real, const char *name)
{
	intptr_t a = ((any *)ours)(NULL, NULL, NULL, NULL, NULL, NULL);
	intptr_t b = real ? ((any *)real)(NULL, NULL, NULL, NULL, NULL, NULL) : NVML_ERROR_FUNCTION_NOT_FOUND;

	if ((int)a != (int)b) {
		fprintf(stderr, "%s returned %d, the real one %d\n", name, (int)a, (int)b);
		exit(1);
	}
}

int main(void)
{
	void *ours = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
	void *real = dlopen("/.vgpu/libnvidia-ml.so", RTLD_NOW | RTLD_LOCAL);
	char name[128], class[16];
	unsigned n = 0, missing = 0;

	CHECK(ours && real && ours != real);
	IS(NVML_ERROR_UNINITIALIZED, named("nvmlDeviceSetComputeMode")());
	IS(NVML_ERROR_UNINITIALIZED, named("nvmlDeviceGetProcessUtilization")());
	OK(nvmlInit_v2());
	while (scanf("%127s %15s", name, class) == 2) {
		void *p = dlsym(ours, name), *q = dlsym(real, name);
		Dl_info info;

		if (!p || !dladdr(p, &info)) {
			fprintf(stderr, "%s is not there\n", name);
			return 1;
		}
		CHECK(strstr(info.dli_fname, "/vgpulib/"));
		n++;
		missing += !q;
		if (strcmp(class, "change") == 0)
			IS(NVML_ERROR_NO_PERMISSION, ((int (*)(void))p)());
		else if (strcmp(class, "hidden") == 0)
			IS(NVML_ERROR_NOT_SUPPORTED, ((int (*)(void))p)());
		else if (strcmp(class, "pass") == 0)
			same(p, q, name);
	}
	CHECK(!dlsym(ours, "nvmlNobodyKnows") && !dlsym(ours, "vgpu_resolve"));
	say("%u names, %u of them not in the real library", n, missing);
	say("done");
	return 0;
}
