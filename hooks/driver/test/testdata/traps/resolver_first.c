/* SPDX-License-Identifier: Apache-2.0 */
/*
 * resolver_first NAME...: as runtimes since CUDA 12 do, the process is not linked
 * with the driver, its first call is cuGetProcAddress, for hundreds of names, each
 * more than once; cuInit and all else is called by what that returned.
 */
#include "trap.h"

typedef CUresult (*resolver)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static resolver resolve;

/* The name's address; NULL if there is none. */
static void *ask(const char *name, cuuint64_t flags)
{
	CUdriverProcAddressQueryResult status = CU_GET_PROC_ADDRESS_SUCCESS;
	void *p = NULL;
	CUresult r = resolve(name, &p, 13000, flags, &status);

	CHECK(r == CUDA_SUCCESS || r == CUDA_ERROR_NOT_FOUND);
	CHECK((p != NULL) == (status == CU_GET_PROC_ADDRESS_SUCCESS));
	return p;
}

#define CALL(name) ((__typeof__(&name))ask(#name, CU_GET_PROC_ADDRESS_DEFAULT))

static int found(char **names, cuuint64_t flags)
{
	int n = 0;

	for (char **name = names; *name; name++) {
		void *p = ask(*name, flags);

		/* Each time the same: who asks twice is not told that there is none. */
		CHECK(ask(*name, flags) == p);
		n += p != NULL;
	}
	return n;
}

int main(int argc, char **argv)
{
	static const char ptx[] =
		".version 6.0\n.target sm_50\n.address_size 64\n"
		".visible .entry spin_us(.param .u32 spin_us_param_0)\n{\n\tret;\n}\n";
	void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *arguments[] = { &(unsigned){ 50 } };
	CUdevice device;
	CUmodule module;

	CHECK(library);
	resolve = (resolver)dlsym(library, "cuGetProcAddress_v2");
	CHECK(resolve);
	say("%d names: %d legacy, %d per-thread", argc - 1, found(argv + 1, CU_GET_PROC_ADDRESS_LEGACY_STREAM),
	    found(argv + 1, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM));
	OK(CALL(cuInit)(0));
	OK(CALL(cuDeviceGet)(&device, 0));
	OK(((CUresult (*)(CUcontext *, unsigned, CUdevice))dlsym(library, "cuCtxCreate_v2"))(&context, 0, device));
	OK(CALL(cuModuleLoadData)(&module, ptx));
	OK(CALL(cuModuleGetFunction)(&spin, module, "spin_us"));
	OK(CALL(cuLaunchKernel)(spin, 1, 1, 1, 1, 1, 1, 0, NULL, arguments, NULL));
	OK(CALL(cuCtxSynchronize)());
	say("launched");
	return 0;
}
