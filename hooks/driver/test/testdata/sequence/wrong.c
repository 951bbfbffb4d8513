/* SPDX-License-Identifier: Apache-2.0 */
/* What is wrong or known of pointers and handles; calls of the age of 32 bits. */
#include <dlfcn.h>

#include "sequence.h"

#define WILD ((CUdeviceptr)0x1234)

static CUdeviceptr some_pointer(struct thread *t)
{
	struct buffer *b = some_buffer(t);

	switch (pick(t, 6)) {
	case 0:
		return WILD;
	case 1:
		return (CUdeviceptr)(uintptr_t)t->host;
	default:
		return b ? b->at + pick(t, CHUNK) : 0;
	}
}

static void ask_all(struct thread *t, CUdeviceptr at)
{
	unsigned type = 77, managed = 77;
	int ordinal = 77;
	CUpointer_attribute attributes[] = { CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL };
	CUresult r = cuPointerGetAttributes(3, attributes, (void *[]){ &type, &managed, &ordinal }, at);

	note(t, r, "cuPointerGetAttributes: %u %u %d", type, managed, ordinal);
}

void pointers(struct thread *t)
{
	CUdeviceptr at = some_pointer(t), base = 0, seen = 0;
	CUcontext ctx = NULL;
	unsigned type = 77;
	size_t size = 77;
	CUresult r;

	switch (pick(t, 6)) {
	case 0:
		r = cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at);
		note(t, r, "cuPointerGetAttribute of the type: %u", type);
		break;
	case 1:
		r = cuPointerGetAttribute(&ctx, CU_POINTER_ATTRIBUTE_CONTEXT, at);
		note(t, r, "cuPointerGetAttribute of the context: %s", ctx == t->context ? "own" : "another");
		break;
	case 2:
		r = cuPointerGetAttribute(&seen, CU_POINTER_ATTRIBUTE_DEVICE_POINTER, at);
		note(t, r, "cuPointerGetAttribute of the pointer: %s", seen == at ? "the same" : "another");
		break;
	case 3:
		r = cuMemGetAddressRange(&base, &size, at);
		note(t, r, "cuMemGetAddressRange: %zu", size);
		if (r == CUDA_SUCCESS)
			fprintf(t->out, "  at %llu\n", (unsigned long long)(at - base));
		break;
	case 4:
		ask_all(t, at);
		break;
	case 5:
		type = 1;
		note(t, cuPointerSetAttribute(&type, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, at), "cuPointerSetAttribute");
		break;
	}
}

/* Names that the headers call by a newer version. */
#define OLD(name, ...) ((CUresult (*)(__VA_ARGS__))dlsym(RTLD_DEFAULT, name))

struct old {
	unsigned at;               /* 0: none */
};

static void old_copies(struct thread *t, struct old *o)
{
	unsigned value = pick(t, 1000);

	for (unsigned i = 0; i < WORDS; i++)
		t->host[i] = value + i;
	note(t, OLD("cuMemcpyHtoD", unsigned, const void *, unsigned)(o->at, t->host, CHUNK), "old cuMemcpyHtoD");
	note(t, OLD("cuMemsetD32", unsigned, unsigned, unsigned)(o->at, value, pick(t, WORDS)), "old cuMemsetD32");
	note(t, OLD("cuMemcpyDtoD", unsigned, unsigned, unsigned)(o->at + 1024, o->at, 512), "old cuMemcpyDtoD");
	memset(t->host, 0, CHUNK);
	note(t, OLD("cuMemcpyDtoH", void *, unsigned, unsigned)(t->host, o->at, CHUNK), "old cuMemcpyDtoH");
	show(t, WORDS);
}

void old_calls(struct thread *t)
{
	unsigned base = 0, size = 77, at = 0, pitch = 77;
	struct old *o = t->old;
	CUresult r;

	if (!o)
		o = t->old = state_of(sizeof(*o));
	if (t->capturing >= 0)
		return;
	if (!o->at) {
		if (note(t, OLD("cuMemAlloc", unsigned *, unsigned)(&o->at, CHUNK), "old cuMemAlloc") != CUDA_SUCCESS)
			o->at = 0;
		return;
	}
	switch (pick(t, 5)) {
	case 0:
	case 1:
		old_copies(t, o);
		break;
	case 2:
		r = OLD("cuMemGetAddressRange", unsigned *, unsigned *, unsigned)(&base, &size, o->at + 5);
		note(t, r, "old cuMemGetAddressRange: %u", size);
		break;
	case 3:
		r = OLD("cuMemAllocPitch", unsigned *, unsigned *, unsigned, unsigned, unsigned)(&at, &pitch, 100, 8, 4);
		note(t, r, "old cuMemAllocPitch");
		if (r == CUDA_SUCCESS)
			note(t, OLD("cuMemFree", unsigned)(at), "old cuMemFree");
		break;
	case 4:
		if (chance(t, 50))
			return;
		note(t, OLD("cuMemFree", unsigned)(o->at), "old cuMemFree");
		o->at = 0;
		break;
	}
}

static void wrong_memory(struct thread *t)
{
	CUdeviceptr at = 1, host = (CUdeviceptr)(uintptr_t)t->host;
	size_t pitch = 1;

	switch (pick(t, 10)) {
	case 0:
		note(t, t->cuMemcpyHtoD_v2_(WILD, t->host, 64), "cuMemcpyHtoD to a wild pointer");
		break;
	case 1:
		note(t, t->cuMemcpyDtoH_v2_(t->host, host, 64), "cuMemcpyDtoH of memory of the host");
		break;
	case 2:
		note(t, t->cuMemcpyDtoD_v2_(WILD, WILD, 64), "cuMemcpyDtoD of wild pointers");
		break;
	case 3:
		note(t, t->cuMemcpyHtoDAsync_v2_(host, t->host, 64, t->stream[some_stream(t)]), "cuMemcpyHtoDAsync to memory of the host");
		break;
	case 4:
		note(t, t->cuMemsetD8Async_(WILD, 1, 64, t->stream[some_stream(t)]), "cuMemsetD8Async of a wild pointer");
		break;
	case 5:
		note(t, t->cuMemFreeAsync_(WILD, t->stream[some_stream(t)]), "cuMemFreeAsync of a wild pointer");
		break;
	case 6:
		note(t, cuMemAlloc(&at, SIZE_MAX), "cuMemAlloc of all there can be");
		break;
	case 7:
		note(t, cuMemAllocPitch(&at, &pitch, SIZE_MAX / 4, 8, 4), "cuMemAllocPitch of more than there can be");
		break;
	case 8:
		note(t, t->cuMemAllocAsync_(&at, SIZE_MAX - 5, t->stream[some_stream(t)]), "cuMemAllocAsync of all there can be");
		break;
	case 9:
		note(t, cuMemAllocManaged(&at, SIZE_MAX - 100, CU_MEM_ATTACH_GLOBAL), "cuMemAllocManaged of all there can be");
		break;
	}
}

static void no_handle(struct thread *t)
{
	CUgraphExec exec;
	CUfunction f;
	CUgraph g;

	switch (pick(t, 13)) {
	case 0:
		note(t, t->cuEventRecord_(NULL, t->stream[0]), "cuEventRecord of none");
		break;
	case 1:
		note(t, cuEventSynchronize(NULL), "cuEventSynchronize of none");
		break;
	case 2:
		note(t, cuEventDestroy(NULL), "cuEventDestroy of none");
		break;
	case 3:
		note(t, t->cuStreamWaitEvent_(t->stream[0], NULL, 0), "cuStreamWaitEvent of none");
		break;
	case 4:
		note(t, cuStreamDestroy(NULL), "cuStreamDestroy of the default stream");
		break;
	case 5:
		note(t, cuCtxDestroy(NULL), "cuCtxDestroy of none");
		break;
	case 6:
		note(t, cuModuleGetFunction(&f, NULL, "x"), "cuModuleGetFunction of none");
		break;
	case 7:
		note(t, t->cuGraphLaunch_(NULL, t->stream[0]), "cuGraphLaunch of none");
		break;
	case 8:
		note(t, cuGraphInstantiate(&exec, NULL, 0), "cuGraphInstantiate of none");
		break;
	case 9:
		note(t, cuGraphClone(&g, NULL), "cuGraphClone of none");
		break;
	case 10:
		note(t, cuMemPoolDestroy(NULL), "cuMemPoolDestroy of none");
		break;
	case 11:
		note(t, cuArrayDestroy(NULL), "cuArrayDestroy of none");
		break;
	case 12:
		note(t, cuMemRelease(0), "cuMemRelease of none");
		break;
	}
}

void wrong(struct thread *t)
{
	if (chance(t, 50))
		wrong_memory(t);
	else
		no_handle(t);
}

static void stale_stream(struct thread *t)
{
	CUstream s;

	if (note(t, cuStreamCreate(&s, 0), "cuStreamCreate") != CUDA_SUCCESS)
		return;
	cuStreamDestroy(s);
	note(t, t->cuLaunchKernel_(t->spin, 1, 1, 1, 1, 1, 1, 0, s, (void *[]){ &(unsigned){ 2 } }, NULL), "launch on a stream that was destroyed");
	note(t, t->cuStreamSynchronize_(s), "cuStreamSynchronize of it");
	note(t, cuStreamDestroy(s), "cuStreamDestroy of it");
}

static void stale_event(struct thread *t)
{
	CUevent e;

	if (note(t, cuEventCreate(&e, CU_EVENT_DISABLE_TIMING), "cuEventCreate") != CUDA_SUCCESS)
		return;
	cuEventDestroy(e);
	note(t, t->cuEventRecord_(e, t->stream[0]), "cuEventRecord of an event that was destroyed");
	note(t, cuEventSynchronize(e), "cuEventSynchronize of it");
	note(t, cuEventDestroy(e), "cuEventDestroy of it");
}

static void stale_context(struct thread *t)
{
	CUcontext c, popped;

	if (note(t, cuCtxCreate(&c, NULL, 0, device), "cuCtxCreate") != CUDA_SUCCESS)
		return;
	cuCtxPushCurrent(t->context);
	cuCtxDestroy(c);
	note(t, cuCtxPopCurrent(&popped), "cuCtxPopCurrent");
	note(t, t->cuStreamSynchronize_(t->stream[0]), "cuStreamSynchronize in a context that was destroyed");
	note(t, cuCtxSynchronize(), "cuCtxSynchronize in it");
	note(t, cuCtxPopCurrent(&popped), "cuCtxPopCurrent");
	note(t, cuCtxPushCurrent(c), "cuCtxPushCurrent of it");
	note(t, cuCtxDestroy(c), "cuCtxDestroy of it");
}

/* Handles of what is gone. They are used at once: later they may be somebody else's. */
void stale(struct thread *t)
{
	CUdeviceptr at = 0;

	if (t->capturing >= 0)
		return;
	switch (pick(t, 4)) {
	case 0:
		stale_stream(t);
		break;
	case 1:
		stale_event(t);
		break;
	case 2:
		stale_context(t);
		break;
	case 3:
		if (note(t, cuMemAlloc(&at, CHUNK), "cuMemAlloc") != CUDA_SUCCESS)
			return;
		cuMemFree(at);
		note(t, cuMemFree(at), "cuMemFree again");
		break;
	}
}
