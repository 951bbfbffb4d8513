/* SPDX-License-Identifier: Apache-2.0 */
/* Functions and what is told of them; other ways to launch them; modules and libraries. */
#include "sequence.h"

static void ask(struct thread *t)
{
	CUfunction f = chance(t, 90) ? (chance(t, 50) ? t->fill : t->spin) : NULL;
	CUfunction_attribute a = (CUfunction_attribute)pick(t, 14);
	const char *name = "";
	size_t offset = 77, size = 77, i = pick(t, 4);
	int value = 77;
	CUresult r;

	switch (pick(t, 5)) {
	case 0:
		r = cuFuncGetAttribute(&value, a, f);
		note(t, r, "cuFuncGetAttribute %d: %d", (int)a, value);
		break;
	case 1:
		r = cuFuncGetName(&name, f);
		note(t, r, "cuFuncGetName: %s", name);
		break;
	case 2:
		r = cuFuncGetParamInfo(f, i, &offset, &size);
		note(t, r, "cuFuncGetParamInfo %zu: %zu %zu", i, offset, size);
		break;
	case 3:
		r = cuOccupancyMaxActiveBlocksPerMultiprocessor(&value, f, 32 << pick(t, 7), 0);
		note(t, r, "cuOccupancyMaxActiveBlocksPerMultiprocessor: %d", value);
		break;
	case 4:
		note(t, cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 1024), "cuFuncSetAttribute");
		break;
	}
}

static void with_attributes(struct thread *t, struct buffer *b)
{
	CUlaunchAttribute attribute[3] = { { .id = CU_LAUNCH_ATTRIBUTE_PRIORITY, .value.priority = -1 },
					   { .id = CU_LAUNCH_ATTRIBUTE_COOPERATIVE, .value.cooperative = 0 },
					   { .id = CU_LAUNCH_ATTRIBUTE_LAUNCH_COMPLETION_EVENT } };
	unsigned value = pick(t, 1000), n = WORDS, e = pick(t, EVENTS);
	CUlaunchConfig c = { .gridDimX = chance(t, 90) ? 4 : 0, .gridDimY = 1, .gridDimZ = 1, .blockDimX = 128, .blockDimY = 1, .blockDimZ = 1,
			     .hStream = t->stream[b->home], .attrs = attribute, .numAttrs = pick(t, 3) };

	/* An event without timing, of no other use: those of the kind "events" may be waited for. */
	if (t->capturing < 0 && !t->event[e] && note(t, cuEventCreate(&t->event[e], CU_EVENT_DISABLE_TIMING), "cuEventCreate %u", e) == CUDA_SUCCESS) {
		attribute[2].value.launchCompletionEvent.event = t->event[e];
		c.numAttrs = 3;
	}
	note(t, t->cuLaunchKernelEx_(&c, t->fill, (void *[]){ &b->at, &value, &n }, NULL), "cuLaunchKernelEx of %u attributes, %d", c.numAttrs,
	     which(t, b));
	if (c.numAttrs == 3) {
		note(t, cuEventQuery(t->event[e]), "cuEventQuery %u", e);
		note(t, cuEventDestroy(t->event[e]), "cuEventDestroy %u", e);
		t->event[e] = NULL;
	}
}

static void with_buffer(struct thread *t, struct buffer *b)
{
	struct { CUdeviceptr at; unsigned value, n; } params = { b->at, pick(t, 1000), WORDS };
	size_t size = chance(t, 90) ? sizeof(params) : 4;
	void *extra[] = { (void *)1, &params, (void *)2, &size, NULL };

	note(t, t->cuLaunchKernel_(t->fill, 4, 1, 1, 128, 1, 1, 0, t->stream[b->home], NULL, extra), "fill %d by a buffer of %zu", which(t, b), size);
}

void functions(struct thread *t)
{
	struct buffer *b = some_buffer(t);
	unsigned value = pick(t, 1000), n = WORDS;

	if (!b || chance(t, 40)) {
		ask(t);
		return;
	}
	switch (pick(t, 3)) {
	case 0:
		with_attributes(t, b);
		break;
	case 1:
		note(t, t->cuLaunchCooperativeKernel_(t->fill, 2, 1, 1, 128, 1, 1, 0, t->stream[b->home], (void *[]){ &b->at, &value, &n }),
		     "cuLaunchCooperativeKernel, %d", which(t, b));
		break;
	case 2:
		with_buffer(t, b);
		break;
	}
	mark_captured(t, b);
}

static void module(struct thread *t, struct buffer *b)
{
	unsigned value = pick(t, 1000), n = WORDS;
	CUfunction f = NULL;
	CUmodule m;

	if (note(t, cuModuleLoadData(&m, kernel_text("fill_u32")), "cuModuleLoadData") != CUDA_SUCCESS)
		return;
	note(t, cuModuleGetFunction(&f, m, "no_such"), "cuModuleGetFunction of nothing");
	note(t, cuModuleGetFunction(&f, m, "fill_u32"), "cuModuleGetFunction");
	if (b) {
		note(t, t->cuLaunchKernel_(f, 4, 1, 1, 128, 1, 1, 0, t->stream[b->home], (void *[]){ &b->at, &value, &n }, NULL),
		     "fill %d by a module", which(t, b));
		if (!settle(t, b))
			return; /* and keep the module */
	}
	note(t, cuModuleUnload(m), "cuModuleUnload");
}

static void library(struct thread *t, struct buffer *b)
{
	unsigned value = pick(t, 1000), n = WORDS;
	CUfunction f = NULL;
	CUkernel k = NULL;
	CUlibrary l;

	if (note(t, cuLibraryLoadData(&l, kernel_text("fill_u32"), NULL, NULL, 0, NULL, NULL, 0), "cuLibraryLoadData") != CUDA_SUCCESS)
		return;
	note(t, cuLibraryGetKernel(&k, l, "fill_u32"), "cuLibraryGetKernel");
	note(t, cuKernelGetFunction(&f, k), "cuKernelGetFunction");
	if (b) {
		note(t, t->cuLaunchKernel_(chance(t, 50) ? f : (CUfunction)k, 4, 1, 1, 128, 1, 1, 0, t->stream[b->home],
					   (void *[]){ &b->at, &value, &n }, NULL), "fill %d by a library", which(t, b));
		if (!settle(t, b))
			return;
	}
	note(t, cuLibraryUnload(l), "cuLibraryUnload");
}

void modules(struct thread *t)
{
	struct buffer *b = some_buffer(t);
	CUmodule m;

	if (t->capturing >= 0)
		return;
	switch (pick(t, 4)) {
	case 0:
	case 1:
		module(t, b);
		break;
	case 2:
		library(t, b);
		break;
	case 3:
		note(t, cuModuleLoadData(&m, "no program at all"), "cuModuleLoadData of no program");
		note(t, cuModuleLoad(&m, "/nowhere"), "cuModuleLoad of no file");
		break;
	}
}
