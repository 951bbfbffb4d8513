/* SPDX-License-Identifier: Apache-2.0 */
/* Programs that are not linked with libcuda: dlopen, dlsym, cuGetProcAddress. */
#include "test.h"

static void *library, *linked;

typedef CUresult (*launch_fn)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CUstream, void **,
			      void **);
typedef CUresult (*proc_fn)(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

static CUresult launch_by(void *f)
{
	return ((launch_fn)f)(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, (void **)0xe);
}

static void load(const char *name)
{
	library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (!library)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(library);
}

static void *symbol(const char *name)
{
	void *p = dlsym(library, name);

	CHECK(p);
	return p;
}

static void *ask_for(const char *name, int version, cuuint64_t flags)
{
	CUdriverProcAddressQueryResult status;
	void *p = (void *)1;

	OK(((proc_fn)symbol("cuGetProcAddress_v2"))(name, &p, version, flags, &status));
	CHECK((p != NULL) == (status == CU_GET_PROC_ADDRESS_SUCCESS));
	return p;
}

static void *ask(const char *name, cuuint64_t flags)
{
	return ask_for(name, 12000, flags);
}

static void begin(void)
{
	CUcontext context;

	OK(((CUresult (*)(unsigned))ask("cuInit", 0))(0));
	OK(((CUresult (*)(CUcontext *, unsigned, CUdevice))symbol("cuCtxCreate_v2"))(&context, 0, 0));
}

/* Every name of the file leads to the one library, which is ours. */
static void names(void)
{
	static const char *const name[] = { "libcuda.so.1", "libcuda.so", "libcuda.so.999.10", "/vgpulib/libcuda.so.999.10" };
	void *first = NULL;

	for (size_t i = 0; i < sizeof(name) / sizeof(name[0]); i++) {
		load(name[i]);
		if (!first)
			first = symbol("cuLaunchKernel");
		CHECK(symbol("cuLaunchKernel") == first);
	}
	CHECK(first != fake("cuLaunchKernel"));
	/* A name that we have never heard of. */
	CHECK(((CUresult (*)(int))symbol("cuBrandNew"))(1) == (CUresult)1001);
}

static void addresses(void)
{
	load("libcuda.so.1");
	CHECK(ask("cuLaunchKernel", CU_GET_PROC_ADDRESS_DEFAULT) == symbol("cuLaunchKernel"));
	CHECK(ask("cuLaunchKernel", CU_GET_PROC_ADDRESS_LEGACY_STREAM) == symbol("cuLaunchKernel"));
	CHECK(ask("cuLaunchKernel", CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) == symbol("cuLaunchKernel_ptsz"));
	CHECK(ask("cuMemcpyHtoD", 0) == symbol("cuMemcpyHtoD_v2"));
	CHECK(ask("cuInit", 0) == symbol("cuInit"));
	CHECK(ask("cuGetProcAddress", 0) == symbol("cuGetProcAddress_v2"));
	CHECK(ask("cuLaunchKernelRenamed", 0) == symbol("cuLaunchKernel"));
	CHECK(ask("cuNoSuchThing", 0) == NULL);
	/* Nothing to watch there: still the same address as by dlsym. */
	CHECK(ask("cuDeviceGet", 0) == symbol("cuDeviceGet"));
	CHECK(((CUresult (*)(void))ask("cuSomethingNew", 0))() == (CUresult)4321);
	CHECK(((CUresult (*)(void))ask("cuLaunchSomethingNew", 0))() == (CUresult)4321);
	CHECK(((proc_fn)symbol("cuGetProcAddress_v2"))("cuInit", &linked, 99999, 0, NULL) == CUDA_ERROR_INVALID_VALUE);
	OK(((CUresult (*)(const char *, void **, int, cuuint64_t))symbol("cuGetProcAddress"))("cuLaunchKernel", &linked, 11030, 0));
	CHECK(linked == symbol("cuLaunchKernel"));
	begin();
	say("ready");
	await();
	OK(launch_by(ask("cuLaunchKernel", 0)));
	say("launched");
	await();
}

/* The driver answers with an address that no name has. */
static void hidden(void)
{
	void *f;

	load("libcuda.so.1");
	begin();
	f = ask("cuLaunchKernel", 0);
	CHECK(f != symbol("cuLaunchKernel") && f != fake("cuLaunchKernel"));
	CHECK(ask("cuLaunchKernel", 0) == f);
	say("ready");
	await();
	OK(launch_by(f));
	say("launched");
	await();
	OK(launch_by(symbol("cuLaunchKernel")));
	CHECK(FAKE_LAUNCHES() == 2);
}

/* The same of a name whose versions take different parameters: which one it is, is
 * told by the version asked for. Of one that is newer than our table nobody knows. */
static void hidden_version(void)
{
	void *f, *newer;
	char byte;

	load("libcuda.so.1");
	begin();
	newer = ask_for("cuMemcpyDtoHAsync", 14000, 0);
	f = ask_for("cuMemcpyDtoHAsync", 12000, 0);
	CHECK(f != newer);
	CHECK(ask_for("cuMemcpyDtoHAsync", 3020, 0) == f);
	say("ready");
	await();
	OK(((CUresult (*)(void *, CUdeviceptr, size_t, CUstream))f)(&byte, 1, 1, NULL));
	say("launched");
	await();
}

static void lacking(void)
{
	CUlaunchConfig config = { .gridDimX = 1 };

	load("libcuda.so.1");
	CHECK(((CUresult (*)(const CUlaunchConfig *, CUfunction, void **, void **))symbol("cuLaunchKernelEx"))(&config, NULL, NULL, NULL) ==
	      CUDA_ERROR_NOT_SUPPORTED);
}

static const struct test tests[] = {
	{ "names", names },
	{ "addresses", addresses },
	{ "hidden", hidden },
	{ "hidden-version", hidden_version },
	{ "lacking", lacking },
	{ 0 },
};

int main(int argc, char **argv)
{
	return run_test(tests, argc, argv);
}
