/* SPDX-License-Identifier: Apache-2.0 */
/* What the test programs share. They talk with the Go test in lines: say() and
 * await(). A failed CHECK ends the program with status 1. */
#ifndef VGPU_NVML_TEST_H
#define VGPU_NVML_TEST_H

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../nvml_abi.h"

#define CHECK(cond) do { \
	if (!(cond)) { \
		fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #cond); \
		exit(1); \
	} \
} while (0)

#define IS(want, call) do { \
	int is_ = (int)(call); \
	if (is_ != (int)(want)) { \
		fprintf(stderr, "%s:%d: %s returned %d\n", __FILE__, __LINE__, #call, is_); \
		exit(1); \
	} \
} while (0)
#define OK(call) IS(NVML_SUCCESS, call)

static inline void say(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	fflush(stdout);
}

/* Waits for a line of the test. */
static inline void await(void)
{
	char line[64];

	CHECK(fgets(line, sizeof(line), stdin));
}

static inline nvmlDevice_t device(unsigned i)
{
	nvmlDevice_t d;

	OK(nvmlDeviceGetHandleByIndex_v2(i, &d));
	return d;
}

/* A function without a prototype here, by its name. */
static inline int (*named(const char *name))(void)
{
	int (*f)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, name);

	CHECK(f);
	return f;
}

#endif
