/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "adder.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "cuda_abi.h"

#define KERNEL "/clients/vec_add_f32.ptx"
#define N 20000u
#define SIZE (N * sizeof(float))

struct adder {
	CUdeviceptr a, b, sum;
	CUstream stream;
	float *in, *out; /* of the host */
	unsigned seed;
};

static CUcontext context;
static CUfunction function;

static int failed(const char *call, int result)
{
	if (result)
		fprintf(stderr, "%s: error %d\n", call, result);
	return result;
}

/* LINKED: the names are the linker's business. */
#ifdef LINKED
#define CALL(name, ...) failed(#name, name(__VA_ARGS__))
#else
static void *driver;

static void *find(const char *name)
{
	void *p = dlsym(driver, name);

	if (!p) {
		fprintf(stderr, "no %s in the driver\n", name);
		abort();
	}
	return p;
}

#define CALL(name, ...) failed(#name, ((__typeof__(&name))find(#name))(__VA_ARGS__))
#endif

int adder_open(const char *library, int flags)
{
	static char text[1 << 14];
	FILE *f = fopen(KERNEL, "rb");
	CUmodule module;
	CUdevice device;
	int result;

	if (!f || fread(text, 1, sizeof(text) - 1, f) == 0)
		return failed("reading " KERNEL, -1);
	fclose(f);
#ifdef LINKED
	(void)library;
	(void)flags;
#else
	driver = dlopen(library, RTLD_NOW | flags);
	if (!driver) {
		fprintf(stderr, "%s\n", dlerror());
		return -1;
	}
#endif
	if ((result = CALL(cuInit, 0)) || (result = CALL(cuDeviceGet, &device, 0)) ||
	    (result = CALL(cuDevicePrimaryCtxRetain, &context, device)) || (result = CALL(cuCtxSetCurrent, context)) ||
	    (result = CALL(cuModuleLoadData, &module, text)))
		return result;
	return CALL(cuModuleGetFunction, &function, module, "vec_add_f32");
}

struct adder *adder_new(void)
{
	struct adder *a = calloc(1, sizeof(*a));

	if (!a || !(a->in = malloc(SIZE)) || !(a->out = malloc(SIZE)) || CALL(cuCtxSetCurrent, context) ||
	    CALL(cuStreamCreate, &a->stream, CU_STREAM_NON_BLOCKING) || CALL(cuMemAlloc_v2, &a->a, SIZE) ||
	    CALL(cuMemAlloc_v2, &a->b, SIZE) || CALL(cuMemAlloc_v2, &a->sum, SIZE))
		return NULL;
	return a;
}

int adder_submit(struct adder *a, unsigned seed)
{
	uint32_t n = N;
	void *params[] = { &a->a, &a->b, &a->sum, &n };
	float value = (float)(a->seed = seed % 4096);
	uint32_t bits;
	int result;

	__builtin_memcpy(&bits, &value, sizeof(bits));
	for (uint32_t i = 0; i < N; i++) {
		a->in[i] = (float)i;
		a->out[i] = -1;
	}
	if ((result = CALL(cuCtxSetCurrent, context)) || (result = CALL(cuMemcpyHtoDAsync_v2, a->a, a->in, SIZE, a->stream)) ||
	    (result = CALL(cuMemsetD32Async, a->b, bits, N, a->stream)) ||
	    (result = CALL(cuMemsetD32Async, a->sum, 0, N, a->stream)))
		return result;
	return CALL(cuLaunchKernel, function, (N + 255) / 256, 1, 1, 256, 1, 1, 0, a->stream, params, NULL);
}

int adder_collect(struct adder *a)
{
	int result;

	if ((result = CALL(cuCtxSetCurrent, context)) || (result = CALL(cuMemcpyDtoHAsync_v2, a->out, a->sum, SIZE, a->stream)) ||
	    (result = CALL(cuStreamSynchronize, a->stream)))
		return result;
	for (uint32_t i = 0; i < N; i++)
		if (a->out[i] != (float)(i + a->seed)) {
			fprintf(stderr, "element %u is %g, not %u\n", i, (double)a->out[i], i + a->seed);
			return -1;
		}
	return 0;
}

int adder_meet(void)
{
	char mine[] = ADDER_MEETING "/XXXXXX";
	int fd = mkstemp(mine);

	if (fd < 0)
		return failed("making a file in " ADDER_MEETING, -1);
	close(fd);
	while (access(ADDER_MEETING "/now", F_OK) != 0)
		usleep(2000);
	return 0;
}

int adder_run(struct adder *a)
{
	int result;

	for (unsigned i = 0; i < ADDER_SUMS; i++)
		if ((result = adder_submit(a, i)) || (result = adder_collect(a)) || (i == 0 && (result = adder_meet())))
			return result;
	return 0;
}
