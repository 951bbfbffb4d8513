/* SPDX-License-Identifier: Apache-2.0 */
/* What the test programs share. They run on a real driver too, where one is there. */
#ifndef TEST_H
#define TEST_H

#include <cuda_abi.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define CHECK(e)                                                                                                       \
	do {                                                                                                           \
		if (!(e)) {                                                                                            \
			fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #e);                              \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

#define GIVES(want, e)                                                                                                 \
	do {                                                                                                           \
		CUresult got_ = (e);                                                                                   \
		if (got_ != (want)) {                                                                                  \
			fprintf(stderr, "%s:%d: %s gives %d, not %d\n", __FILE__, __LINE__, #e, got_, want);           \
			exit(1);                                                                                       \
		}                                                                                                      \
	} while (0)

#define OK(e) GIVES(CUDA_SUCCESS, e)
#define ARGS(...) ((void *[]){ __VA_ARGS__ })

static const char *kernels_dir;

/* argv[1] is the folder of the kernels. A context on the first device. */
static inline CUcontext begin(int argc, char **argv, int device)
{
	CUcontext ctx;
	CUdevice dev;

	CHECK(argc > 1);
	kernels_dir = argv[1];
	OK(cuInit(0));
	OK(cuDeviceGet(&dev, device));
	OK(cuCtxCreate(&ctx, NULL, 0, dev));
	return ctx;
}

static inline char *read_text(const char *path)
{
	FILE *f = fopen(path, "r");
	char *text = calloc(1, 65536);

	CHECK(f && text);
	CHECK(fread(text, 1, 65535, f) > 0);
	fclose(f);
	return text;
}

/* Each kernel is alone in a file of its name. */
static inline CUfunction function(const char *name)
{
	char path[4096];
	CUfunction f;
	CUmodule m;

	snprintf(path, sizeof(path), "%s/%s.ptx", kernels_dir, name);
	char *text = read_text(path);
	OK(cuModuleLoadData(&m, text));
	OK(cuModuleGetFunction(&f, m, name));
	free(text);
	return f;
}

static inline void launch(CUfunction f, CUstream s, unsigned grid, unsigned block, void **args)
{
	OK(cuLaunchKernel(f, grid, 1, 1, block, 1, 1, 0, s, args, NULL));
}

/*
 * Stops a stream until let_go, so that nothing depends on how long work takes: a
 * wait for a value in host memory. It is no work.
 */
static inline unsigned *hold_word(void)
{
	static unsigned *word;

	if (!word) {
		OK(cuMemAllocHost((void **)&word, sizeof(*word)));
		*word = 0;
	}
	return word;
}

static inline void hold(CUstream s)
{
	OK(cuStreamWaitValue32(s, (CUdeviceptr)(uintptr_t)hold_word(), *hold_word() + 1, CU_STREAM_WAIT_VALUE_GEQ));
}

static inline void let_go(void)
{
	__atomic_fetch_add(hold_word(), 1, __ATOMIC_RELEASE);
}

static inline void sleep_ms(long ms)
{
	nanosleep(&(struct timespec){ ms / 1000, ms % 1000 * 1000000 }, NULL);
}

#endif
