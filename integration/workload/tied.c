/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tied: has work in flight that can not end before the program submits more.
 *
 *   tied --by collective|lock|value [--steps N] [--kernels DIR]
 *
 *   collective  a kernel on each of two GPUs, each of which spins until the other runs
 *   lock        a host function that takes a lock, and a thread that has it and submits
 *   value       a stream that waits for a value, which another stream writes behind
 *               a kernel of its own. With --steps that is the last of so many
 *               pieces, and those before it come behind the wait
 *
 * Submits the first part and says "half". Then it submits the next piece each
 * time that it gets SIGUSR1. Prints "done" once all is complete.
 */
#include "common.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

static sigset_t go;

static void await_signal(void)
{
	int got;

	printf("half\n");
	fflush(stdout);
	sigwait(&go, &got);
}

static void collective(int argc, char **argv)
{
	CUcontext context[2];
	CUfunction meet[2];
	uint32_t all = 2, *arrived;
	void *params[] = { &arrived, &all };
	CUdevice device;

	CU(cuInit(0));
	for (int i = 0; i < 2; i++) {
		CU(cuDeviceGet(&device, i));
		CU(cuDevicePrimaryCtxRetain(&context[i], device));
		CU(cuCtxSetCurrent(context[i]));
		meet[i] = load_kernel(argc, argv, "meet");
	}
	CU(cuMemHostAlloc((void **)&arrived, sizeof(*arrived), CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP));
	*arrived = 0;
	for (int i = 0; i < 2; i++) {
		CU(cuCtxSetCurrent(context[i]));
		CU(cuLaunchKernel(meet[i], 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL));
		if (i == 0)
			await_signal();
	}
	for (int i = 0; i < 2; i++) {
		CU(cuCtxSetCurrent(context[i]));
		CU(cuCtxSynchronize());
	}
}

static void take_lock(void *lock)
{
	pthread_mutex_lock(lock);
	pthread_mutex_unlock(lock);
}

static void lock(CUfunction spin, CUstream one, CUstream two)
{
	static pthread_mutex_t held = PTHREAD_MUTEX_INITIALIZER;

	pthread_mutex_lock(&held);
	CU(cuLaunchHostFunc(one, take_lock, &held));
	launch_spin(spin, 1000, one);
	await_signal();
	launch_spin(spin, 1000, two);
	pthread_mutex_unlock(&held);
}

static void value(CUfunction spin, CUstream one, CUstream two, uint32_t steps)
{
	CUdeviceptr word;

	CU(cuMemAlloc(&word, sizeof(uint32_t)));
	CU(cuMemsetD32(word, 0, 1));
	CU(cuCtxSynchronize());
	CU(cuStreamWaitValue32(one, word, 1, CU_STREAM_WAIT_VALUE_GEQ));
	launch_spin(spin, 1000, one);
	for (uint32_t i = 1; i < steps; i++) {
		await_signal();
		launch_spin(spin, 1000, one);
	}
	await_signal();
	launch_spin(spin, 1000, two);
	CU(cuStreamWriteValue32(two, word, 1, 0));
}

int main(int argc, char **argv)
{
	const char *by = option_text(argc, argv, "--by", "");
	CUstream one, two;
	CUfunction spin;

	sigemptyset(&go);
	sigaddset(&go, SIGUSR1);
	sigprocmask(SIG_BLOCK, &go, NULL);
	if (!strcmp(by, "collective")) {
		collective(argc, argv);
	} else {
		open_device();
		spin = load_kernel(argc, argv, "spin_us");
		CU(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
		CU(cuStreamCreate(&two, CU_STREAM_NON_BLOCKING));
		if (!strcmp(by, "lock"))
			lock(spin, one, two);
		else if (!strcmp(by, "value"))
			value(spin, one, two, (uint32_t)option_u64(argc, argv, "--steps", 1));
		else
			fail("--by must be collective, lock or value");
		CU(cuCtxSynchronize());
	}
	printf("done\n");
	return 0;
}
