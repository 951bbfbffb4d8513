/* SPDX-License-Identifier: Apache-2.0 */
#include "common.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define DEFAULT_KERNELS "/vgpu"

void fail(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	exit(1);
}

void cu_check(CUresult result, const char *call, const char *file, int line)
{
	const char *name = NULL;

	if (result == CUDA_SUCCESS)
		return;
	/* A driver may have no name for it. */
	(void)cuGetErrorName(result, &name);
	fail("%s:%d: %s: %s (%d)", file, line, call, name ? name : "unknown error", (int)result);
}

const char *option_text(int argc, char **argv, const char *name, const char *otherwise)
{
	for (int i = 1; i + 1 < argc; i++)
		if (!strcmp(argv[i], name))
			return argv[i + 1];
	return otherwise;
}

int option_set(int argc, char **argv, const char *name)
{
	for (int i = 1; i < argc; i++)
		if (!strcmp(argv[i], name))
			return 1;
	return 0;
}

uint64_t option_u64(int argc, char **argv, const char *name, uint64_t otherwise)
{
	const char *text = option_text(argc, argv, name, NULL);
	char *end;
	uint64_t value;

	if (!text)
		return otherwise;
	value = strtoull(text, &end, 10);
	if (*text < '0' || *text > '9' || *end)
		fail("%s: a whole number is needed, not \"%s\"", name, text);
	return value;
}

uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* The whole file as a string. Never freed: it lives as long as the program. */
static char *read_text(const char *path)
{
	FILE *f = fopen(path, "rb");
	char *text;
	long size;

	if (!f || fseek(f, 0, SEEK_END) || (size = ftell(f)) < 0 || fseek(f, 0, SEEK_SET))
		fail("failed to read %s", path);
	text = malloc((size_t)size + 1);
	if (!text || fread(text, 1, (size_t)size, f) != (size_t)size)
		fail("failed to read %s", path);
	text[size] = 0;
	fclose(f);
	return text;
}

void open_device(void)
{
	CUdevice device;
	CUcontext context;

	CU(cuInit(0));
	CU(cuDeviceGet(&device, 0));
	CU(cuDevicePrimaryCtxRetain(&context, device));
	CU(cuCtxSetCurrent(context));
}

CUfunction load_kernel(int argc, char **argv, const char *name)
{
	const char *dir = option_text(argc, argv, "--kernels", DEFAULT_KERNELS);
	char path[4096];
	CUmodule module;
	CUfunction function;

	if (snprintf(path, sizeof(path), "%s/%s.ptx", dir, name) >= (int)sizeof(path))
		fail("--kernels is too long");
	CU(cuModuleLoadData(&module, read_text(path)));
	CU(cuModuleGetFunction(&function, module, name));
	return function;
}

void launch_spin(CUfunction spin, uint32_t us, CUstream stream)
{
	void *params[] = { &us };

	CU(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}
