/* SPDX-License-Identifier: Apache-2.0 */
/*
 * sequence KERNELS SEED OPERATIONS THREADS: a random sequence of driver calls.
 * Each call's result, and what it left in memory, is a line of the output, so
 * that two drivers can be compared. The output depends on the seed alone:
 *   - a call that may find work done or not yet (a query) shows the same for both;
 *   - a buffer is used on one stream only, its home;
 *   - memory that a graph knows is not freed while the graph lives;
 *   - threads share nothing but the process: each has a context of its own.
 * Many calls are wrong on purpose: errors must be the same, too.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../cuda_abi.h"

#define BUFFERS 8
#define STREAMS 5              /* the first two are the default streams */
#define EVENTS  4
#define GRAPHS  2
#define WORDS   512
#define CHUNK   (WORDS * 4)

/* The calls whose flavour and way of look-up the seed chooses. */
#define CALLS(X) \
	X(cuLaunchKernel, "cuLaunchKernel", "_ptsz") X(cuMemcpyHtoDAsync_v2, "cuMemcpyHtoDAsync", "_ptsz") \
	X(cuMemcpyDtoHAsync_v2, "cuMemcpyDtoHAsync", "_ptsz") X(cuMemcpyDtoDAsync_v2, "cuMemcpyDtoDAsync", "_ptsz") \
	X(cuMemcpyHtoD_v2, "cuMemcpyHtoD", "_ptds") X(cuMemcpyDtoH_v2, "cuMemcpyDtoH", "_ptds") \
	X(cuMemsetD32Async, "cuMemsetD32Async", "_ptsz") X(cuMemsetD8Async, "cuMemsetD8Async", "_ptsz") \
	X(cuMemsetD32_v2, "cuMemsetD32", "_ptds") X(cuStreamSynchronize, "cuStreamSynchronize", "_ptsz") \
	X(cuStreamQuery, "cuStreamQuery", "_ptsz") X(cuEventRecord, "cuEventRecord", "_ptsz") \
	X(cuStreamWaitEvent, "cuStreamWaitEvent", "_ptsz") X(cuGraphLaunch, "cuGraphLaunch", "_ptsz") \
	X(cuLaunchHostFunc, "cuLaunchHostFunc", "_ptsz") X(cuStreamBeginCapture_v2, "cuStreamBeginCapture", "_ptsz") \
	X(cuStreamEndCapture, "cuStreamEndCapture", "_ptsz") X(cuMemAllocAsync, "cuMemAllocAsync", "_ptsz") \
	X(cuMemFreeAsync, "cuMemFreeAsync", "_ptsz")

struct buffer {
	CUdeviceptr at;
	int home;                  /* index of its stream; -1: free */
	bool async;
	bool in_graph;
};

struct thread {
	pthread_t id;
	uint64_t random;
	int number, operations, threads;
	CUcontext context;
	CUfunction fill, spin;
	CUstream stream[STREAMS];
	bool alive[STREAMS];
	int capturing;             /* the stream on which a capture was begun, or -1 */
	CUevent event[EVENTS];
	CUgraphExec exec[GRAPHS];
	int graph_home[GRAPHS];
	struct buffer buffer[BUFFERS];
	unsigned host[WORDS];
	_Atomic unsigned called;   /* by host functions */
	FILE *out;
	char *text;
	size_t size;
#define POINTER(name, base, suffix) __typeof__(&name) name##_;
	CALLS(POINTER)
};

static CUdevice device;
static const char *kernels;

static unsigned pick(struct thread *t, unsigned n)
{
	t->random ^= t->random << 13;
	t->random ^= t->random >> 7;
	t->random ^= t->random << 17;
	return (unsigned)(t->random >> 20) % n;
}

static bool chance(struct thread *t, unsigned percent)
{
	return pick(t, 100) < percent;
}

static CUresult note(struct thread *t, CUresult r, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vfprintf(t->out, format, args);
	va_end(args);
	fprintf(t->out, " = %d\n", (int)(r == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : r));
	return r;
}

static void show(struct thread *t, unsigned words)
{
	uint64_t sum = 14695981039346656037u;

	for (unsigned i = 0; i < words; i++)
		sum = (sum ^ t->host[i]) * 1099511628211u;
	fprintf(t->out, "  holds %016llx\n", (unsigned long long)sum);
}

static void *look_up(struct thread *t, const char *symbol, const char *base, const char *suffix, bool per_thread)
{
	CUdriverProcAddressQueryResult found;
	char name[96];
	void *p = NULL;

	snprintf(name, sizeof(name), "%s%s", symbol, per_thread ? suffix : "");
	if (chance(t, 50))
		cuGetProcAddress_v2(base, &p, 13000, per_thread ? 2 : 1, &found);
	if (!p)
		p = dlsym(RTLD_DEFAULT, name);
	if (!p) {
		fprintf(stderr, "no %s\n", name);
		exit(1);
	}
	return p;
}

static CUfunction kernel(const char *name)
{
	static char text[65536];
	static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
	char path[4096];
	CUfunction f = NULL;
	CUmodule m;
	FILE *in;

	snprintf(path, sizeof(path), "%s/%s.ptx", kernels, name);
	pthread_mutex_lock(&lock);
	in = fopen(path, "r");
	if (in) {
		text[fread(text, 1, sizeof(text) - 1, in)] = 0;
		fclose(in);
		if (cuModuleLoadData(&m, text) != CUDA_SUCCESS || cuModuleGetFunction(&f, m, name) != CUDA_SUCCESS)
			f = NULL;
	}
	pthread_mutex_unlock(&lock);
	if (!f) {
		fprintf(stderr, "no kernel %s\n", path);
		exit(1);
	}
	return f;
}

static int some_stream(struct thread *t)
{
	int i = (int)pick(t, STREAMS);

	return t->alive[i] ? i : (int)pick(t, 2);
}

/* A buffer in use, or NULL. */
static struct buffer *some_buffer(struct thread *t)
{
	struct buffer *b = &t->buffer[pick(t, BUFFERS)];

	return b->home >= 0 ? b : NULL;
}

static int which(struct thread *t, struct buffer *b)
{
	return (int)(b - t->buffer);
}

static bool settle(struct thread *t, struct buffer *b)
{
	return note(t, t->cuStreamSynchronize_(t->stream[b->home]), "settle stream %d", b->home) == CUDA_SUCCESS;
}

static void mark_captured(struct thread *t, struct buffer *b)
{
	if (t->capturing >= 0)
		b->in_graph = true;
}

static void allocate_in_capture(struct thread *t)
{
	CUdeviceptr at = 0;

	if (note(t, cuMemAlloc(&at, CHUNK), "cuMemAlloc in a capture") == CUDA_SUCCESS)
		note(t, cuMemFree(at), "cuMemFree in a capture");
}

static void allocate(struct thread *t)
{
	struct buffer *b = &t->buffer[pick(t, BUFFERS)];
	int home = some_stream(t);
	CUdeviceptr at = 0;
	CUresult r;
	bool async;

	if (b->home >= 0)
		return;
	if (t->capturing >= 0) {
		allocate_in_capture(t);
		return;
	}
	async = chance(t, 30);
	if (async)
		r = note(t, t->cuMemAllocAsync_(&at, CHUNK, t->stream[home]), "cuMemAllocAsync %d on %d", which(t, b), home);
	else
		r = note(t, cuMemAlloc(&at, CHUNK), "cuMemAlloc %d", which(t, b));
	if (r != CUDA_SUCCESS)
		return;
	*b = (struct buffer){ .at = at, .home = home, .async = async };
	note(t, t->cuMemsetD32Async_(at, 7, WORDS, t->stream[home]), "first set of %d", which(t, b));
}

static void release(struct thread *t)
{
	struct buffer *b = some_buffer(t);
	CUresult r;

	if (!b || b->in_graph || t->capturing >= 0)
		return;
	if (b->async) {
		r = note(t, t->cuMemFreeAsync_(b->at, t->stream[b->home]), "cuMemFreeAsync %d", which(t, b));
	} else {
		if (!settle(t, b))
			return;
		r = note(t, cuMemFree(b->at), "cuMemFree %d", which(t, b));
	}
	if (r == CUDA_SUCCESS)
		b->home = -1;
}

static void impossible_allocation(struct thread *t)
{
	CUdeviceptr at = 1;
	size_t pitch = 1;

	switch (pick(t, 4)) {
	case 0:
		note(t, cuMemAlloc(&at, (size_t)1 << 50), "cuMemAlloc of a PiB");
		break;
	case 1:
		note(t, cuMemAlloc(&at, 0), "cuMemAlloc of nothing");
		break;
	case 2:
		note(t, cuMemAllocPitch(&at, &pitch, (size_t)1 << 40, 1 << 20, 4), "cuMemAllocPitch of too much");
		break;
	case 3:
		note(t, cuMemFree((CUdeviceptr)0x1234), "cuMemFree of a wild pointer");
		break;
	}
}

static void set(struct thread *t)
{
	struct buffer *b = some_buffer(t);
	unsigned value = pick(t, 1000), words = 1 + pick(t, WORDS);

	if (!b)
		return;
	switch (pick(t, 3)) {
	case 0:
		if (!settle(t, b))
			return;
		note(t, t->cuMemsetD32_v2_(b->at, value, words), "cuMemsetD32 %d", which(t, b));
		note(t, cuCtxSynchronize(), "cuCtxSynchronize");
		return;
	case 1:
		note(t, t->cuMemsetD32Async_(b->at, value, words, t->stream[b->home]), "cuMemsetD32Async %d", which(t, b));
		break;
	case 2:
		note(t, t->cuMemsetD8Async_(b->at, (unsigned char)value, words, t->stream[b->home]), "cuMemsetD8Async %d", which(t, b));
		break;
	}
	mark_captured(t, b);
}

static void launch(struct thread *t)
{
	struct buffer *b = some_buffer(t);
	unsigned value = pick(t, 1000), n = WORDS, us = pick(t, 400);
	void *fill[] = { b ? &b->at : NULL, &value, &n }, *spin[] = { &us };
	int s = some_stream(t);

	switch (pick(t, 5)) {
	case 0:
		note(t, t->cuLaunchKernel_(NULL, 1, 1, 1, 1, 1, 1, 0, t->stream[s], NULL, NULL), "launch of nothing on %d", s);
		return;
	case 1:
		note(t, t->cuLaunchKernel_(t->spin, 0, 1, 1, 1, 1, 1, 0, t->stream[s], spin, NULL), "launch of no block on %d", s);
		return;
	case 2:
		note(t, t->cuLaunchKernel_(t->spin, 1, 1, 1, 1, 1, 1, 0, t->stream[s], spin, NULL), "spin on %d", s);
		return;
	}
	if (!b)
		return;
	note(t, t->cuLaunchKernel_(t->fill, 4, 1, 1, 128, 1, 1, 0, t->stream[b->home], fill, NULL), "fill %d", which(t, b));
	mark_captured(t, b);
}

static void copy(struct thread *t)
{
	struct buffer *a = some_buffer(t), *b = some_buffer(t);
	unsigned from = pick(t, 1000);

	if (!b)
		return;
	switch (pick(t, 5)) {
	case 0:
		if (!settle(t, b))
			return;
		for (unsigned i = 0; i < WORDS; i++)
			t->host[i] = from + i;
		note(t, t->cuMemcpyHtoD_v2_(b->at, t->host, CHUNK), "cuMemcpyHtoD %d", which(t, b));
		note(t, cuCtxSynchronize(), "cuCtxSynchronize");
		break;
	case 1:
		if (!settle(t, b))
			return;
		memset(t->host, 0, CHUNK);
		note(t, t->cuMemcpyDtoH_v2_(t->host, b->at, CHUNK), "cuMemcpyDtoH %d", which(t, b));
		show(t, WORDS);
		break;
	case 2:
		if (t->capturing >= 0)
			return; /* the host's memory would be read whenever the graph runs */
		memset(t->host, 0, CHUNK);
		note(t, t->cuMemcpyDtoHAsync_v2_(t->host, b->at, CHUNK, t->stream[b->home]), "cuMemcpyDtoHAsync %d", which(t, b));
		settle(t, b);
		show(t, WORDS);
		break;
	case 3:
		if (!a || a == b || a->home != b->home)
			return;
		note(t, t->cuMemcpyDtoDAsync_v2_(b->at, a->at, CHUNK, t->stream[b->home]), "cuMemcpyDtoDAsync %d to %d", which(t, a), which(t, b));
		mark_captured(t, a);
		mark_captured(t, b);
		break;
	case 4:
		note(t, t->cuMemcpyDtoDAsync_v2_(b->at, b->at, 0, t->stream[b->home]), "copy of nothing in %d", which(t, b));
		break;
	}
}

static void streams(struct thread *t)
{
	int i = 2 + (int)pick(t, STREAMS - 2), s = some_stream(t);

	switch (pick(t, 4)) {
	case 0:
		if (t->alive[i])
			return;
		t->alive[i] = note(t, cuStreamCreate(&t->stream[i], pick(t, 2)), "cuStreamCreate %d", i) == CUDA_SUCCESS;
		break;
	case 1:
		if (!t->alive[i] || t->capturing >= 0)
			return;
		for (int b = 0; b < BUFFERS; b++)
			if (t->buffer[b].home == i)
				return;
		for (int g = 0; g < GRAPHS; g++)
			if (t->exec[g] && t->graph_home[g] == i)
				return;
		note(t, cuStreamDestroy(t->stream[i]), "cuStreamDestroy %d", i);
		t->alive[i] = false;
		break;
	case 2:
		note(t, t->cuStreamSynchronize_(t->stream[s]), "cuStreamSynchronize %d", s);
		break;
	case 3:
		note(t, t->cuStreamQuery_(t->stream[s]), "cuStreamQuery %d", s);
		break;
	}
}

static void events(struct thread *t)
{
	int e = (int)pick(t, EVENTS), s = some_stream(t), other = some_stream(t);
	float ms;

	if (!t->event[e]) {
		note(t, cuEventCreate(&t->event[e], pick(t, 2) ? CU_EVENT_DISABLE_TIMING : CU_EVENT_DEFAULT), "cuEventCreate %d", e);
		return;
	}
	switch (pick(t, 6)) {
	case 0:
	case 1:
		note(t, t->cuEventRecord_(t->event[e], t->stream[s]), "cuEventRecord %d on %d", e, s);
		break;
	case 2:
		note(t, t->cuStreamWaitEvent_(t->stream[other], t->event[e], 0), "cuStreamWaitEvent %d on %d", e, other);
		break;
	case 3:
		note(t, cuEventSynchronize(t->event[e]), "cuEventSynchronize %d", e);
		break;
	case 4:
		note(t, cuEventQuery(t->event[e]), "cuEventQuery %d", e);
		break;
	case 5:
		if (chance(t, 50)) {
			note(t, cuEventElapsedTime(&ms, t->event[e], t->event[e]), "cuEventElapsedTime %d", e);
			return;
		}
		note(t, cuEventDestroy(t->event[e]), "cuEventDestroy %d", e);
		t->event[e] = NULL;
		break;
	}
}

static void forget_graph(struct thread *t, int g)
{
	bool left = false;

	note(t, t->cuStreamSynchronize_(t->stream[t->graph_home[g]]), "settle graph %d", g);
	note(t, cuGraphExecDestroy(t->exec[g]), "cuGraphExecDestroy %d", g);
	t->exec[g] = NULL;
	for (int i = 0; i < GRAPHS; i++)
		left = left || t->exec[i];
	for (int i = 0; !left && i < BUFFERS; i++)
		t->buffer[i].in_graph = false;
}

static void end_capture(struct thread *t)
{
	int s = t->capturing, g = 0;
	CUgraph graph = NULL;
	CUresult r;

	t->capturing = -1;
	r = note(t, t->cuStreamEndCapture_(t->stream[s], &graph), "cuStreamEndCapture %d", s);
	while (g < GRAPHS && t->exec[g])
		g++;
	if (r != CUDA_SUCCESS || !graph)
		return;
	if (g < GRAPHS && note(t, cuGraphInstantiate(&t->exec[g], graph, 0), "cuGraphInstantiate %d", g) == CUDA_SUCCESS)
		t->graph_home[g] = s;
	else if (g < GRAPHS)
		t->exec[g] = NULL;
	note(t, cuGraphDestroy(graph), "cuGraphDestroy");
}

static void captures(struct thread *t)
{
	static const CUstreamCaptureMode modes[] = { CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, CU_STREAM_CAPTURE_MODE_RELAXED,
						     CU_STREAM_CAPTURE_MODE_GLOBAL };
	int s = some_stream(t), g = (int)pick(t, GRAPHS);

	if (t->capturing >= 0) {
		if (chance(t, 60))
			end_capture(t);
		return;
	}
	if (t->exec[g]) {
		if (chance(t, 75))
			note(t, t->cuGraphLaunch_(t->exec[g], t->stream[t->graph_home[g]]), "cuGraphLaunch %d", g);
		else
			forget_graph(t, g);
		return;
	}
	/* What another thread may do then depends on when it does it. */
	if (note(t, t->cuStreamBeginCapture_v2_(t->stream[s], modes[pick(t, t->threads > 1 ? 2 : 3)]), "cuStreamBeginCapture %d", s) ==
	    CUDA_SUCCESS)
		t->capturing = s;
}

static void called(void *arg)
{
	struct thread *t = arg;

	t->called++;
}

static void host_function(struct thread *t)
{
	int s = some_stream(t);

	if (t->capturing >= 0)
		return;
	note(t, t->cuLaunchHostFunc_(t->stream[s], called, t), "cuLaunchHostFunc on %d", s);
	note(t, t->cuStreamSynchronize_(t->stream[s]), "settle stream %d", s);
	fprintf(t->out, "  called %u\n", t->called);
}

static void contexts(struct thread *t)
{
	CUcontext now = NULL, popped = NULL;
	CUdevice d = -1;

	switch (pick(t, 3)) {
	case 0:
		note(t, cuCtxGetCurrent(&now), "cuCtxGetCurrent: %s", now == t->context ? "own" : "another");
		break;
	case 1:
		note(t, cuCtxPopCurrent(&popped), "cuCtxPopCurrent");
		note(t, t->cuLaunchKernel_(t->spin, 1, 1, 1, 1, 1, 1, 0, t->stream[0], NULL, NULL), "launch without a context");
		note(t, cuCtxPushCurrent(popped), "cuCtxPushCurrent");
		break;
	case 2:
		note(t, cuCtxGetDevice(&d), "cuCtxGetDevice: %s", d == device ? "own" : "another");
		break;
	}
}

/* So that what another thread does about this one falls between two calls. */
static void pause_here(struct thread *t)
{
	usleep(pick(t, 600));
}

static void *run(void *arg)
{
	static void (*const operation[])(struct thread *) = {
		allocate, allocate, release, impossible_allocation, set, set, launch, launch, launch, copy, copy, copy,
		streams, streams, events, events, captures, captures, host_function, contexts, pause_here, pause_here,
	};
	struct thread *t = arg;
	bool per_thread = chance(t, 40);

	t->out = open_memstream(&t->text, &t->size);
	if (!t->out || cuCtxCreate(&t->context, NULL, 0, device) != CUDA_SUCCESS) {
		fprintf(stderr, "no context\n");
		exit(1);
	}
#define RESOLVE(name, base, suffix) t->name##_ = (__typeof__(&name))look_up(t, #name, base, suffix, per_thread);
	CALLS(RESOLVE)
	t->fill = kernel("fill_u32");
	t->spin = kernel("spin_us");
	t->capturing = -1;
	t->stream[0] = NULL;
	t->stream[1] = chance(t, 50) ? CU_STREAM_LEGACY : CU_STREAM_PER_THREAD;
	t->alive[0] = t->alive[1] = true;
	for (int i = 0; i < BUFFERS; i++)
		t->buffer[i].home = -1;
	for (int i = 0; i < t->operations; i++)
		operation[pick(t, sizeof(operation) / sizeof(operation[0]))](t);
	if (t->capturing >= 0)
		end_capture(t);
	note(t, cuCtxSynchronize(), "cuCtxSynchronize");
	for (int i = 0; i < BUFFERS; i++) {
		if (t->buffer[i].home < 0)
			continue;
		memset(t->host, 0, CHUNK);
		note(t, cuMemcpyDtoH(t->host, t->buffer[i].at, CHUNK), "at last %d", i);
		show(t, WORDS);
	}
	note(t, cuCtxDestroy(t->context), "cuCtxDestroy");
	fclose(t->out);
	return NULL;
}

int main(int argc, char **argv)
{
	unsigned long long seed;
	int n;
	struct thread *t;

	if (argc != 5)
		return 2;
	kernels = argv[1];
	seed = strtoull(argv[2], NULL, 10);
	n = atoi(argv[4]);
	if (cuInit(0) != CUDA_SUCCESS || cuDeviceGet(&device, 0) != CUDA_SUCCESS) {
		fprintf(stderr, "no device\n");
		return 1;
	}
	t = calloc((size_t)n, sizeof(*t));
	for (int i = 0; i < n; i++) {
		t[i].number = i;
		t[i].threads = n;
		t[i].operations = atoi(argv[3]);
		t[i].random = (seed + 1) * 0x9e3779b97f4a7c15u + (uint64_t)i * 0xc2b2ae3d27d4eb4fu;
		pthread_create(&t[i].id, NULL, run, &t[i]);
	}
	for (int i = 0; i < n; i++) {
		pthread_join(t[i].id, NULL);
		printf("thread %d\n%s", i, t[i].text);
		free(t[i].text);
	}
	free(t);
	return fflush(stdout) == 0 ? 0 : 1;
}
