/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: which is current, others that come and go with work in flight, primary ones. */
#include "sequence.h"

/* Work, memory and a stream in the current context, left as they are. */
static void leave_work(struct thread *t)
{
	unsigned us = 200 + pick(t, 2000);
	CUdeviceptr at = 0;
	CUstream s = NULL;
	CUfunction f;

	f = kernel("spin_us");
	note(t, cuStreamCreate(&s, pick(t, 2)), "cuStreamCreate there");
	note(t, cuMemAlloc(&at, CHUNK), "cuMemAlloc there");
	note(t, t->cuMemsetD8Async_(at, 1, CHUNK, s), "set there");
	note(t, t->cuLaunchKernel_(f, 1, 1, 1, 1, 1, 1, 0, s, (void *[]){ &us }, NULL), "spin there");
	if (chance(t, 30))
		note(t, t->cuLaunchKernel_(f, 1, 1, 1, 1, 1, 1, 0, NULL, (void *[]){ &us }, NULL), "spin there on the default stream");
	if (chance(t, 30))
		note(t, cuStreamDestroy(s), "cuStreamDestroy there");
	if (chance(t, 20))
		note(t, cuCtxSynchronize(), "cuCtxSynchronize there");
}

static void another(struct thread *t)
{
	CUcontext other, popped = NULL, now = NULL;

	if (t->capturing >= 0)
		return;
	if (note(t, cuCtxCreate(&other, NULL, 0, device), "cuCtxCreate") != CUDA_SUCCESS)
		return;
	leave_work(t);
	if (chance(t, 50)) {
		note(t, cuCtxPopCurrent(&popped), "cuCtxPopCurrent: %s", "another");
		note(t, t->cuStreamQuery_(t->stream[0]), "cuStreamQuery of our own");
	}
	note(t, cuCtxDestroy(other), "cuCtxDestroy of another");
	note(t, cuCtxGetCurrent(&now), "cuCtxGetCurrent");
	fprintf(t->out, "  %s\n", now == t->context ? "own" : "another");
}

void contexts(struct thread *t)
{
	CUcontext now = NULL, popped = NULL;
	CUdevice d = -1;

	switch (pick(t, 5)) {
	case 0:
		note(t, cuCtxGetCurrent(&now), "cuCtxGetCurrent");
		fprintf(t->out, "  %s\n", now == t->context ? "own" : "another");
		break;
	case 1:
		note(t, cuCtxPopCurrent(&popped), "cuCtxPopCurrent");
		note(t, t->cuLaunchKernel_(t->spin, 1, 1, 1, 1, 1, 1, 0, t->stream[0], NULL, NULL), "launch without a context");
		note(t, cuCtxPushCurrent(popped), "cuCtxPushCurrent");
		break;
	case 2:
		note(t, cuCtxGetDevice(&d), "cuCtxGetDevice");
		fprintf(t->out, "  %s\n", d == device ? "own" : "another");
		break;
	case 3:
		note(t, cuCtxPushCurrent(t->context), "cuCtxPushCurrent again");
		note(t, t->cuStreamQuery_(t->stream[0]), "cuStreamQuery");
		note(t, cuCtxPopCurrent(&popped), "cuCtxPopCurrent");
		break;
	case 4:
		if (chance(t, 30))
			another(t);
		break;
	}
}

/* The process has one, so no other thread may be about. */
void primary(struct thread *t)
{
	CUcontext ctx = NULL, popped;
	unsigned flags = 77;
	int active = 77;
	CUresult r;

	if (t->capturing >= 0)
		return;
	switch (pick(t, 5)) {
	case 0:
	case 1:
		if (note(t, cuDevicePrimaryCtxRetain(&ctx, device), "cuDevicePrimaryCtxRetain") != CUDA_SUCCESS)
			return;
		note(t, cuCtxPushCurrent(ctx), "cuCtxPushCurrent of the primary");
		leave_work(t);
		note(t, cuCtxPopCurrent(&popped), "cuCtxPopCurrent of the primary");
		note(t, cuCtxDestroy(ctx), "cuCtxDestroy of the primary");
		break;
	case 2:
		note(t, cuDevicePrimaryCtxRelease(device), "cuDevicePrimaryCtxRelease");
		break;
	case 3:
		note(t, cuDevicePrimaryCtxReset(device), "cuDevicePrimaryCtxReset");
		break;
	case 4:
		r = cuDevicePrimaryCtxGetState(device, &flags, &active);
		note(t, r, "cuDevicePrimaryCtxGetState: %u %d", flags, active);
		break;
	}
}
