/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the traps share. Each is a program that does something odd around CUDA,
 * and says what came of it: the same with our library as without.
 */
#ifndef VGPU_TEST_TRAP_H
#define VGPU_TEST_TRAP_H

#include "../test.h"

static CUcontext context;
static CUfunction spin;

/* A context, and a kernel that is busy for some microseconds. */
static inline void begin(void)
{
	static const char ptx[] =
		".version 6.0\n.target sm_50\n.address_size 64\n"
		".visible .entry spin_us(.param .u32 spin_us_param_0)\n{\n\tret;\n}\n";
	CUdevice device;
	CUmodule module;

	OK(cuInit(0));
	OK(cuDeviceGet(&device, 0));
	OK(cuCtxCreate_v2(&context, 0, device));
	OK(cuModuleLoadData(&module, ptx));
	OK(cuModuleGetFunction(&spin, module, "spin_us"));
}

static inline void submit(CUstream s)
{
	unsigned us = 50;
	void *arguments[] = { &us };

	OK(cuLaunchKernel(spin, 1, 1, 1, 1, 1, 1, 0, s, arguments, NULL));
}

static inline void compute(int times)
{
	for (int i = 0; i < times; i++) {
		submit(NULL);
		OK(cuCtxSynchronize());
	}
}

/* Submits until the process ends, and spends most of its time at the gate. */
static inline void *submit_for_ever(void *unused)
{
	(void)unused;
	OK(cuCtxSetCurrent(context));
	for (;;)
		compute(1);
	return NULL;
}

static inline pthread_t in_thread(void *(*run)(void *))
{
	pthread_t t;

	CHECK(pthread_create(&t, NULL, run, NULL) == 0);
	return t;
}

static inline void say_end(const char *who, int status)
{
	say("%s: %s %d", who, WIFEXITED(status) ? "exit" : "signal", WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
}

#endif
