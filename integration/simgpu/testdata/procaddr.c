/* SPDX-License-Identifier: Apache-2.0 */
/* cuGetProcAddress: versions, flavours, answers that are not exported addresses. */
#define _GNU_SOURCE
#include <dlfcn.h>

#include "test.h"

static void *ask(const char *name, int version, cuuint64_t flags, CUdriverProcAddressQueryResult want)
{
	CUdriverProcAddressQueryResult got;
	void *fn = (void *)1;

	OK(cuGetProcAddress(name, &fn, version, flags, &got));
	if (got != want)
		fprintf(stderr, "%s %d: status %d, not %d\n", name, version, got, want);
	CHECK(got == want && (fn != NULL) == (want == CU_GET_PROC_ADDRESS_SUCCESS));
	return fn;
}

#define FOUND CU_GET_PROC_ADDRESS_SUCCESS
#define IS(name, a) CHECK(dlsym(RTLD_DEFAULT, name) == (a))

int main(void)
{
	void *fn;

	IS("cuMemAlloc_v2", ask("cuMemAlloc", 12000, 0, FOUND));
	IS("cuMemAlloc", ask("cuMemAlloc", 2000, 0, FOUND));
	IS("cuCtxCreate_v2", ask("cuCtxCreate", 11000, 0, FOUND));
	IS("cuCtxCreate_v3", ask("cuCtxCreate", 11040, 0, FOUND));
	IS("cuCtxCreate_v4", ask("cuCtxCreate", 13000, 0, FOUND));
	IS("cuCtxSynchronize", ask("cuCtxSynchronize", 12080, 0, FOUND));
	IS("cuCtxSynchronize_v2", ask("cuCtxSynchronize", 13000, 0, FOUND));
	IS("cuGetProcAddress_v2", ask("cuGetProcAddress", 12000, 0, FOUND));
	IS("cuLaunchKernel", ask("cuLaunchKernel", 13000, 0, FOUND));
	IS("cuLaunchKernel_ptsz", ask("cuLaunchKernel", 13000, 2, FOUND));
	IS("cuLaunchKernel", ask("cuLaunchKernel", 13000, 1, FOUND));
	IS("cuMemcpyHtoD_v2_ptds", ask("cuMemcpyHtoD", 13000, 2, FOUND));
	IS("cuMemAlloc_v2", ask("cuMemAlloc", 13000, 2, FOUND)); /* has no flavours */
	ask("cuLaunchKernelEx", 11000, 0, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
	ask("cuNoSuchThing", 13000, 0, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
	ask("cuMemAlloc_v2", 13000, 0, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
	/* of a later driver than this one says it is */
	ask("cuLaunchHostFunc_v2", 13000, 0, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGetProcAddress("cuInit", &fn, 99000, 0, NULL));
	GIVES(CUDA_ERROR_NOT_FOUND, cuGetProcAddress("cuNoSuchThing", &fn, 13000, 0, NULL));
	/* An answer that no export has: it works all the same. */
	CUresult (*query)(CUevent);
	*(void **)&query = ask("cuEventQuery", 13000, 0, FOUND);
	CHECK(*(void **)&query != dlsym(RTLD_DEFAULT, "cuEventQuery"));
	GIVES(CUDA_ERROR_NOT_INITIALIZED, query(NULL));
	return 0;
}
