/* SPDX-License-Identifier: Apache-2.0 */
/*
 * names NAME...: what cuGetProcAddress returns for each, by each flavour of default
 * stream. Prints "version V", then "name NAME FLAVOUR WHAT FILE": the exported name that
 * stands at that address, "hidden" if none does, and the library that it is in; "none" if
 * there is no such function, "error R" if the call fails.
 */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "common.h"

#include <stdio.h>

static const struct {
	const char *name;
	cuuint64_t flags;
} flavours[] = {
	{ "default", CU_GET_PROC_ADDRESS_DEFAULT },
	{ "legacy", CU_GET_PROC_ADDRESS_LEGACY_STREAM },
	{ "per-thread", CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM },
};

static void ask(const char *name, int version)
{
	for (size_t i = 0; i < sizeof(flavours) / sizeof(flavours[0]); i++) {
		CUdriverProcAddressQueryResult status;
		void *p = NULL;
		CUresult r = cuGetProcAddress_v2(name, &p, version, flavours[i].flags, &status);
		Dl_info at;

		printf("name %s %s ", name, flavours[i].name);
		if (r != CUDA_SUCCESS && r != CUDA_ERROR_NOT_FOUND)
			printf("error %d\n", (int)r);
		else if (!p)
			printf("none\n");
		else if (!dladdr(p, &at))
			printf("hidden nowhere\n");
		else
			printf("%s %s\n", at.dli_saddr == p && at.dli_sname ? at.dli_sname : "hidden", at.dli_fname);
	}
}

int main(int argc, char **argv)
{
	int version;

	CU(cuInit(0));
	CU(cuDriverGetVersion(&version));
	printf("version %d\n", version);
	for (int i = 1; i < argc; i++)
		ask(argv[i], version);
	printf("done\n");
	return 0;
}
