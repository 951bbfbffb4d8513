/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tiny stand-in for the real libcuda, for the odd cases: work that completes
 * when the test says so, and traps that a wrong call of the library falls into
 * (a query of a destroyed or capturing stream, of the legacy stream beside a
 * capture, from a thread that is not RELAXED).
 *
 * Built in variants:
 *   -DEXTRA       exports names that no header knows
 *   -DHIDDEN      cuGetProcAddress answers with addresses that nothing exports
 *   -DREENTERS    cuInit looks itself up and calls what it finds
 *   -DOLD         lacks cuLaunchKernelEx and cuCtxRecordEvent
 *   -Bsymbolic    (or not): its own calls of exported names stay inside
 * The functions fake_* are the test's side.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define VGPU_CUDA_ABI_EXPORTS
#include "../../cuda_abi.h"

struct CUstream_st {
	int alive;
	CUcontext ctx;
	unsigned long submitted, done;
	int capturing;             /* 1, or 2 once invalidated */
	int origin;
	CUstream of;               /* the origin of its capture */
	struct CUstream_st *next;
};

struct CUctx_st {
	int alive, usage;
	CUdevice device;
	struct CUstream_st legacy;
	struct CUstream_st *per_thread[64];
};

struct CUevent_st {
	int alive;
	CUstream stream;
	unsigned long number;
	int captured;
	/* Behind a whole context: what each of its streams had. */
	struct { CUstream stream; unsigned long number; } *all;
	int n;
	struct CUevent_st *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static CUstream streams;
static CUevent events;             /* never freed, so that a later use is seen */
static int held, captures, violations, launches, captured, events_alive, retains, sticky, queries;
static int syncs;                  /* calls that wait for the GPU */
static int no_witness, *flight = &no_witness; /* in flight, also for the test's eyes */
static pid_t owner;
static char visible[1024] = "(not initialised)";
static struct CUctx_st primary;
static _Thread_local CUcontext stack[16];
static _Thread_local int depth, thread_slot;
static _Thread_local CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

void fake_hold(int on);
void fake_sticky(int error);
void fake_step(void);
int fake_queries(void);
int fake_violations(void);
int fake_launches(void);
int fake_captured(void);
int fake_syncs(void);
int fake_reentered(void);
int fake_events(void);
const char *fake_visible(void);

/* fake_memory.c */
void fake_context_gone(CUcontext ctx);
void fake_synchronised(void);
void fake_graph_launched(void);

static __thread int in_callback;
#define READY do { \
	if (in_callback) \
		return CUDA_ERROR_NOT_PERMITTED; \
	if (owner != getpid()) \
		return CUDA_ERROR_NOT_INITIALIZED; \
} while (0)

/* Points at which the test can stop a thread: most are just before it returns. */
enum { NOWHERE, IN_STREAM_DESTROY, IN_CONTEXT_DESTROY, IN_EVENT_RECORD, IN_PRIMARY_RELEASE, BEFORE_EVENT_RECORD,
       BEFORE_CONTEXT_RECORD, IN_PRIMARY_RETAIN };
static int stop_at, stopped;
static int reuse;                  /* a handle that was freed is given out again */
static CUstream freed_stream;
static CUcontext freed_context;
static int event_error, destroy_error;
static int depends;                /* held work ends with the next submission */
static int crowd;                  /* new streams share a bucket of the library's table */

void fake_stop(int at);
void fake_callback(int on);
int fake_stopped(void);
void fake_go(void);
void fake_reuse(int on);
void fake_event_error(int error);
void fake_destroy_error(int error);
void fake_crowd(int on);
void fake_depends(int on);
void fake_retain(void);

static void violation(const char *what)
{
	fprintf(stderr, "fake driver: %s\n", what);
	violations++;
}

/* Under the lock. */
static void release(void)
{
	held = 0;
	for (CUstream s = streams; s; s = s->next)
		s->done = s->submitted;
	__atomic_store_n(flight, 0, __ATOMIC_SEQ_CST);
	pthread_cond_broadcast(&changed);
}

void fake_hold(int on)
{
	pthread_mutex_lock(&lock);
	if (on)
		held = 1;
	else
		release();
	pthread_mutex_unlock(&lock);
}

/* One piece of work of each stream completes. */
void fake_step(void)
{
	pthread_mutex_lock(&lock);
	for (CUstream s = streams; s; s = s->next) {
		if (s->done < s->submitted) {
			s->done++;
			__atomic_sub_fetch(flight, 1, __ATOMIC_SEQ_CST);
		}
	}
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

static int get(int *what)
{
	int v;

	pthread_mutex_lock(&lock);
	v = *what;
	pthread_mutex_unlock(&lock);
	return v;
}

static void set(int *what, int v)
{
	pthread_mutex_lock(&lock);
	*what = v;
	pthread_cond_broadcast(&changed);
	pthread_mutex_unlock(&lock);
}

void fake_stop(int at) { set(&stop_at, at); }
void fake_callback(int on) { in_callback = on; } /* this thread: as if inside a host function */
int fake_stopped(void) { return get(&stopped); }
void fake_go(void) { set(&stopped, 0); }
void fake_reuse(int on) { set(&reuse, on); }
void fake_event_error(int error) { set(&event_error, error); }
void fake_destroy_error(int error) { set(&destroy_error, error); }
void fake_crowd(int on) { set(&crowd, on); }
void fake_depends(int on) { set(&depends, on); }

/* The first thread that comes here waits for fake_go. */
static void point(int at)
{
	pthread_mutex_lock(&lock);
	if (stop_at == at) {
		stop_at = NOWHERE;
		stopped = 1;
		while (stopped)
			pthread_cond_wait(&changed, &lock);
	}
	pthread_mutex_unlock(&lock);
}

int fake_queries(void)
{
	int n;

	pthread_mutex_lock(&lock);
	n = queries;
	pthread_mutex_unlock(&lock);
	return n;
}

void fake_sticky(int error) { sticky = error; }
int fake_violations(void) { return violations; }
int fake_launches(void) { return launches; }
int fake_captured(void) { return captured; }
int fake_syncs(void) { return get(&syncs); }
int fake_events(void) { return events_alive; }
const char *fake_visible(void) { return visible; }

static CUstream add_stream(CUstream s, CUcontext ctx)
{
	s->alive = 1;
	s->ctx = ctx;
	s->next = streams;
	streams = s;
	return s;
}

/* Under the lock. */
static CUstream stream_of(CUstream s, int per_thread)
{
	static int slots;
	CUcontext ctx = depth ? stack[depth - 1] : NULL;

	if (s == CU_STREAM_PER_THREAD || (s == NULL && per_thread)) {
		if (!ctx)
			return NULL;
		if (!thread_slot)
			thread_slot = ++slots;
		if (!ctx->per_thread[thread_slot])
			ctx->per_thread[thread_slot] = add_stream(calloc(1, sizeof(*s)), ctx);
		return ctx->per_thread[thread_slot];
	}
	if (s == NULL || s == CU_STREAM_LEGACY)
		return ctx ? &ctx->legacy : NULL;
	if (!s->alive) {
		fprintf(stderr, "fake driver: a destroyed stream was used\n");
		abort();
	}
	return s;
}

static CUresult submit(CUstream stream, int per_thread)
{
	CUstream s;
	CUresult r = CUDA_SUCCESS;

	READY;
	pthread_mutex_lock(&lock);
	s = stream_of(stream, per_thread);
	if (!s) {
		r = CUDA_ERROR_INVALID_CONTEXT;
	} else if (sticky) {
		r = sticky;
	} else if (s->capturing) {
		captured++;
	} else {
		launches++;
		s->submitted++;
		if (held)
			__atomic_add_fetch(flight, 1, __ATOMIC_SEQ_CST);
		else
			s->done = s->submitted;
		if (depends)
			release();
	}
	pthread_mutex_unlock(&lock);
	return r;
}

static CUresult wait_for(CUstream stream, int per_thread)
{
	CUstream s;

	READY;
	__atomic_add_fetch(&syncs, 1, __ATOMIC_SEQ_CST);
	pthread_mutex_lock(&lock);
	s = stream_of(stream, per_thread);
	while (s && s->done != s->submitted)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	fake_synchronised();
	return s ? sticky : CUDA_ERROR_INVALID_CONTEXT;
}

static void check_query(CUstream s)
{
	char name[16] = "";

	queries++;
	pthread_getname_np(pthread_self(), name, sizeof(name));
	if (captures && mode != CU_STREAM_CAPTURE_MODE_RELAXED && strcmp(name, "vgpu") == 0)
		violation("a query from a thread that is not RELAXED, beside a capture");
	if (s && s->capturing) {
		violation("a query of a capturing stream");
		s->capturing = 2;
	}
	if (s && captures && s->ctx && s == &s->ctx->legacy)
		violation("a query of the legacy stream beside a capture");
}

static CUresult query(CUstream stream, int per_thread)
{
	CUstream s;
	CUresult r;

	READY;
	pthread_mutex_lock(&lock);
	s = stream_of(stream, per_thread);
	check_query(s);
	r = !s ? CUDA_ERROR_INVALID_CONTEXT : s->done == s->submitted ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
	if (sticky)
		r = sticky;
	pthread_mutex_unlock(&lock);
	return r;
}

static int reentered;
int fake_reentered(void) { return reentered; }

#ifdef REENTERS
static __thread int inside;

/* What the program would find under the name: the library's. */
static void *enter_again(void *unused)
{
	CUresult (*found)(unsigned int) = (CUresult (*)(unsigned int))dlsym(RTLD_DEFAULT, "cuInit");

	inside = 1;
	if (found && found(0) != CUDA_SUCCESS)
		abort();
	inside = 0;
	return unused;
}

/* On this thread, and on one that it waits for. */
static void reenter(void)
{
	pthread_t t;

	enter_again(NULL);
	if (pthread_create(&t, NULL, enter_again, NULL) != 0 || pthread_join(t, NULL) != 0)
		abort();
}
#endif

CUresult cuInit(unsigned int flags)
{
	const char *v = getenv("CUDA_VISIBLE_DEVICES");

	(void)flags;
#ifdef REENTERS
	if (inside) {
		reentered++;
		return CUDA_SUCCESS;
	}
	reenter();
#endif
	if (owner && owner != getpid())
		return CUDA_ERROR_NOT_INITIALIZED;
	snprintf(visible, sizeof(visible), "%s", v ? v : "(unset)");
	if (v && !*v)
		return CUDA_ERROR_NO_DEVICE;
	if (!owner) {
		int fd = open("/.vgpu/flight", O_RDWR);
		void *p = fd < 0 ? MAP_FAILED : mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);

		if (p != MAP_FAILED)
			flight = p;
	}
	owner = getpid();
	return CUDA_SUCCESS;
}

CUresult cuDriverGetVersion(int *version)
{
	*version = 13000;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGet(CUdevice *d, int ordinal)
{
	READY;
	*d = ordinal;
	return CUDA_SUCCESS;
}

/* The number of a GPU is the byte that its UUID is made of. */
CUresult cuDeviceGetUuid(CUuuid *uuid, CUdevice d)
{
	const char *at = visible;
	unsigned byte;

	READY;
	while (d-- > 0 && at)
		at = (at = strchr(at, ',')) ? at + 1 : NULL;
	if (!at || sscanf(at, "GPU-%2x", &byte) != 1)
		return CUDA_ERROR_INVALID_DEVICE;
	memset(uuid, (int)byte, sizeof(*uuid));
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *d)
{
	READY;
	if (!depth)
		return CUDA_ERROR_INVALID_CONTEXT;
	*d = stack[depth - 1]->device;
	return CUDA_SUCCESS;
}

/* Nine integers and a float: for the trampoline's first call. */
CUresult cuParamSetf(CUfunction f, int offset, float value)
{
	return f == (CUfunction)0x1234 && offset == 7 && value == 2.5f ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult cuCtxGetCurrent(CUcontext *ctx)
{
	READY;
	*ctx = depth ? stack[depth - 1] : NULL;
	return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent_v2(CUcontext ctx)
{
	READY;
	if (!ctx || !ctx->alive)
		return CUDA_ERROR_CONTEXT_IS_DESTROYED;
	stack[depth++] = ctx;
	return CUDA_SUCCESS;
}

CUresult cuCtxPopCurrent_v2(CUcontext *ctx)
{
	READY;
	*ctx = stack[--depth];
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext ctx)
{
	READY;
	depth = 0;
	if (ctx)
		stack[depth++] = ctx;
	return CUDA_SUCCESS;
}

static void begin_context(CUcontext c)
{
	pthread_mutex_lock(&lock);
	memset(c, 0, sizeof(*c));
	c->alive = c->usage = 1;
	add_stream(&c->legacy, c);
	pthread_mutex_unlock(&lock);
}

CUresult cuCtxCreate_v2(CUcontext *ctx, unsigned int flags, CUdevice dev)
{
	READY;
	(void)flags;
	if (reuse && freed_context) {
		*ctx = freed_context;
		pthread_mutex_lock(&lock);
		(*ctx)->alive = (*ctx)->legacy.alive = (*ctx)->usage = 1;
		pthread_mutex_unlock(&lock);
		freed_context = NULL;
	} else {
		*ctx = calloc(1, sizeof(**ctx));
		begin_context(*ctx);
	}
	(*ctx)->device = dev;
	stack[depth++] = *ctx;
	return CUDA_SUCCESS;
}

CUresult cuCtxDestroy_v2(CUcontext ctx)
{
	READY;
	pthread_mutex_lock(&lock);
	ctx->alive = 0;
	ctx->legacy.alive = 0;
	ctx->legacy.done = ctx->legacy.submitted;
	pthread_mutex_unlock(&lock);
	if (depth && stack[depth - 1] == ctx)
		depth--;
	freed_context = ctx;
	fake_context_gone(ctx);
	point(IN_CONTEXT_DESTROY);
	return CUDA_SUCCESS;
}

/* Any context is a green one. What runs there goes on when it ends. */
CUresult cuCtxFromGreenCtx(CUcontext *ctx, CUgreenCtx green)
{
	READY;
	*ctx = (CUcontext)green;
	return CUDA_SUCCESS;
}

CUresult cuGreenCtxDestroy(CUgreenCtx green)
{
	READY;
	pthread_mutex_lock(&lock);
	((CUcontext)green)->alive = 0;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuCtxAttach(CUcontext *ctx, unsigned int flags)
{
	READY;
	(void)flags;
	*ctx = stack[depth - 1];
	(*ctx)->usage++;
	return CUDA_SUCCESS;
}

CUresult cuCtxDetach(CUcontext ctx)
{
	READY;
	return --ctx->usage > 0 ? CUDA_SUCCESS : cuCtxDestroy_v2(ctx);
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *ctx, CUdevice dev)
{
	READY;
	if (retains++ == 0)
		begin_context(&primary);
	primary.device = dev;
	*ctx = &primary;
	point(IN_PRIMARY_RETAIN);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice dev)
{
	READY;
	(void)dev;
	if (--retains == 0) {
		primary.alive = 0;
		fake_context_gone(&primary);
	}
	point(IN_PRIMARY_RELEASE);
	return CUDA_SUCCESS;
}

/* Somebody retains it by a way that nothing exports. */
void fake_retain(void) { retains++; }

CUresult cuDevicePrimaryCtxReset_v2(CUdevice dev)
{
	READY;
	(void)dev;
	fake_context_gone(&primary);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxGetState(CUdevice dev, unsigned int *flags, int *active)
{
	READY;
	(void)dev;
	*flags = 0;
	*active = retains > 0;
	return CUDA_SUCCESS;
}

/* An address in the same bucket of the library's table (streams.c) as all others. */
static CUstream crowded(void)
{
	static char *at;

	if (!at)
		at = mmap(NULL, 64 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	do
		at += (sizeof(struct CUstream_st) + 15) / 16 * 16;
	while (((uintptr_t)at * 0x9e3779b97f4a7c15u >> 40 & 1023) != 0);
	return (CUstream)at;
}

CUresult cuStreamCreate(CUstream *s, unsigned int flags)
{
	READY;
	(void)flags;
	pthread_mutex_lock(&lock);
	if (reuse && freed_stream) { /* as a heap does */
		*s = freed_stream;
		freed_stream = NULL;
		(*s)->alive = 1;
		(*s)->capturing = (*s)->origin = 0;
	} else {
		*s = add_stream(crowd ? crowded() : calloc(1, sizeof(**s)), depth ? stack[depth - 1] : NULL);
	}
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuStreamDestroy_v2(CUstream s)
{
	int error = get(&destroy_error); /* once: the test may end the error just then */

	READY;
	if (error)
		return error;
	pthread_mutex_lock(&lock);
	if (s->capturing && s->origin)
		captures--;
	s->alive = 0;
	freed_stream = s;
	pthread_mutex_unlock(&lock);
	point(IN_STREAM_DESTROY);
	return CUDA_SUCCESS;
}

CUresult cuStreamGetCtx(CUstream s, CUcontext *ctx)
{
	READY;
	*ctx = s->ctx;
	return CUDA_SUCCESS;
}

CUresult cuStreamQuery(CUstream s) { return query(s, 0); }
CUresult cuStreamQuery_ptsz(CUstream s) { return query(s, 1); }
CUresult cuStreamSynchronize(CUstream s) { return wait_for(s, 0); }
CUresult cuStreamSynchronize_ptsz(CUstream s) { return wait_for(s, 1); }

CUresult cuCtxSynchronize(void)
{
	CUcontext ctx = depth ? stack[depth - 1] : NULL;
	int busy = 1;

	READY;
	pthread_mutex_lock(&lock);
	while (busy) {
		busy = 0;
		for (CUstream s = streams; s; s = s->next)
			busy |= s->ctx == ctx && s->done != s->submitted;
		if (busy)
			pthread_cond_wait(&changed, &lock);
	}
	pthread_mutex_unlock(&lock);
	__atomic_add_fetch(&syncs, 1, __ATOMIC_SEQ_CST);
	fake_synchronised();
	return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *e, unsigned int flags)
{
	int error = get(&event_error); /* once, as above */

	READY;
	(void)flags;
	if (error)
		return error;
	*e = calloc(1, sizeof(**e));
	(*e)->alive = 1;
	pthread_mutex_lock(&lock);
	(*e)->next = events;
	events = *e;
	pthread_mutex_unlock(&lock);
	__atomic_add_fetch(&events_alive, 1, __ATOMIC_RELAXED);
	return CUDA_SUCCESS;
}

CUresult cuEventDestroy_v2(CUevent e)
{
	READY;
	e->alive = 0;
	__atomic_sub_fetch(&events_alive, 1, __ATOMIC_RELAXED);
	return CUDA_SUCCESS;
}

static CUresult record(CUevent e, CUstream stream, int per_thread)
{
	CUstream s;

	READY;
	point(BEFORE_EVENT_RECORD);
	pthread_mutex_lock(&lock);
	s = stream_of(stream, per_thread);
	if (s && !sticky) {
		e->stream = s;
		e->number = s->submitted;
		e->captured = s->capturing;
		e->n = 0;
	}
	pthread_mutex_unlock(&lock);
	point(IN_EVENT_RECORD);
	return sticky ? sticky : s ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

#ifndef OLD
CUresult cuCtxRecordEvent(CUcontext ctx, CUevent e)
{
	READY;
	point(BEFORE_CONTEXT_RECORD);
	pthread_mutex_lock(&lock);
	if (captures)
		violation("a record of a whole context beside a capture");
	if (!ctx->alive)
		violation("a record of a context that is gone");
	e->stream = NULL;
	e->captured = e->n = 0;
	for (CUstream s = streams; s; s = s->next) {
		if (s->ctx != ctx)
			continue;
		e->all = realloc(e->all, (e->n + 1) * sizeof(*e->all));
		e->all[e->n].stream = s;
		e->all[e->n++].number = s->submitted;
	}
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}
#endif

static int all_done(CUevent e)
{
	for (int i = 0; i < e->n; i++)
		if (e->all[i].stream->done < e->all[i].number)
			return 0;
	return 1;
}

CUresult cuEventRecord(CUevent e, CUstream s) { return record(e, s, 0); }
CUresult cuEventRecord_ptsz(CUevent e, CUstream s) { return record(e, s, 1); }

CUresult cuEventQuery(CUevent e)
{
	CUresult r;

	READY;
	pthread_mutex_lock(&lock);
	if (!e->alive) {
		fprintf(stderr, "fake driver: a destroyed event was used\n");
		abort();
	}
	check_query(NULL);
	r = e->captured ? CUDA_ERROR_CAPTURED_EVENT :
	    (!e->stream || e->stream->done >= e->number) && all_done(e) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
	if (sticky)
		r = sticky;
	pthread_mutex_unlock(&lock);
	return r;
}

CUresult cuEventSynchronize(CUevent e)
{
	READY;
	__atomic_add_fetch(&syncs, 1, __ATOMIC_SEQ_CST);
	pthread_mutex_lock(&lock);
	while (e->stream && e->stream->done < e->number)
		pthread_cond_wait(&changed, &lock);
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent e, unsigned int flags)
{
	CUstream s;

	READY;
	(void)flags;
	pthread_mutex_lock(&lock);
	s = stream_of(stream, 0);
	if (s && e->captured) {
		s->capturing = 1; /* joins the capture */
		s->of = e->stream->of;
	}
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream s, CUstreamCaptureMode m)
{
	READY;
	(void)m;
	if (s == NULL || s == CU_STREAM_LEGACY)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	pthread_mutex_lock(&lock);
	s = stream_of(s, 0);
	s->capturing = s->origin = 1;
	s->of = s;
	captures++;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuStreamEndCapture(CUstream s, CUgraph *graph)
{
	int was;

	READY;
	pthread_mutex_lock(&lock);
	s = stream_of(s, 0);
	was = s->capturing;
	if (s->origin) {
		s->origin = 0;
		captures--;
		for (CUstream x = streams; x; x = x->next)
			if (x->of == s)
				x->capturing = 0;
	}
	pthread_mutex_unlock(&lock);
	*graph = (CUgraph)0x77;
	return was == 1 ? CUDA_SUCCESS : was == 2 ? CUDA_ERROR_STREAM_CAPTURE_INVALIDATED : CUDA_ERROR_ILLEGAL_STATE;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status)
{
	CUstream s;

	READY;
	pthread_mutex_lock(&lock);
	s = stream_of(stream, 0);
	*status = s && s->capturing ? CU_STREAM_CAPTURE_STATUS_ACTIVE : CU_STREAM_CAPTURE_STATUS_NONE;
	pthread_mutex_unlock(&lock);
	return CUDA_SUCCESS;
}

CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode *m)
{
	CUstreamCaptureMode old = mode;

	READY;
	mode = *m;
	*m = old;
	return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
			unsigned int bz, unsigned int shared, CUstream s, void **params, void **extra)
{
	CUcontext ctx;

	(void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)params;
	if (extra && extra != (void **)0xe)
		return CUDA_ERROR_INVALID_VALUE; /* the last stack argument arrives */
	cuCtxGetCurrent(&ctx); /* a call of an exported name */
	return submit(s, 0);
}

CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
			     unsigned int bz, unsigned int shared, CUstream s, void **params, void **extra)
{
	(void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)params, (void)extra;
	return submit(s, 1);
}

#ifndef OLD
CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
	(void)f, (void)params, (void)extra;
	return submit(config->hStream, 0);
}
#endif

CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t n)
{
	(void)to, (void)from, (void)n;
	return submit(NULL, 0);
}

CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t n)
{
	CUresult r;

	(void)to, (void)from;
	if (n == 0)
		return CUDA_SUCCESS; /* nothing to wait for */
	r = submit(NULL, 0);
	return r ? r : wait_for(NULL, 0);
}

CUresult cuGraphLaunch(CUgraphExec g, CUstream s)
{
	(void)g;
	fake_graph_launched();
	return submit(s, 0);
}

/* Setup that copies, by a call of an exported name. */
CUresult cuModuleLoadData(CUmodule *m, const void *image)
{
	*m = (CUmodule)0x99;
	return cuMemcpyHtoD_v2(0, image, 1);
}

CUresult cuModuleUnload(CUmodule m)
{
	(void)m;
	return CUDA_SUCCESS;
}

CUresult cuGraphAddEventRecordNode(CUgraphNode *node, CUgraph g, const CUgraphNode *d, size_t n, CUevent e)
{
	(void)node, (void)g, (void)d, (void)n, (void)e;
	return CUDA_ERROR_NOT_SUPPORTED;
}

#ifdef EXTRA
CUresult cuBrandNew(int x);
CUresult cuBrandNew(int x)
{
	return x + 1000;
}
#endif

static CUresult hidden_launch(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by,
			      unsigned int bz, unsigned int shared, CUstream s, void **params, void **extra)
{
	(void)f, (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared, (void)params, (void)extra;
	return submit(s, 0);
}

static CUresult hidden_copy(void *to, CUdeviceptr from, size_t n, CUstream s)
{
	(void)to, (void)from, (void)n;
	return submit(s, 0);
}

static CUresult hidden_other(void)
{
	return 4321;
}

static void *address_of(const char *symbol, cuuint64_t flags)
{
	int per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;

#ifdef HIDDEN
	if (strcmp(symbol, "cuLaunchKernel") == 0)
		return (void *)hidden_launch;
	if (strcmp(symbol, "cuMemcpyDtoHAsync") == 0)
		return (void *)hidden_copy;
#endif
	(void)hidden_launch, (void)hidden_copy;
	if (strcmp(symbol, "cuSomethingNew") == 0 || strcmp(symbol, "cuLaunchSomethingNew") == 0)
		return (void *)hidden_other;
	if (strcmp(symbol, "cuLaunchKernelRenamed") == 0)
		return (void *)cuLaunchKernel;
	if (strcmp(symbol, "cuLaunchKernel") == 0)
		return per_thread ? (void *)cuLaunchKernel_ptsz : (void *)cuLaunchKernel;
	if (strcmp(symbol, "cuMemcpyHtoD") == 0)
		return (void *)cuMemcpyHtoD_v2;
	if (strcmp(symbol, "cuInit") == 0)
		return (void *)cuInit;
	if (strcmp(symbol, "cuStreamQuery") == 0)
		return (void *)cuStreamQuery;
	if (strcmp(symbol, "cuDeviceGet") == 0)
		return (void *)cuDeviceGet;
	if (strcmp(symbol, "cuGetProcAddress") == 0)
		return (void *)cuGetProcAddress_v2;
	return NULL;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
	if (version > 14000)
		return CUDA_ERROR_INVALID_VALUE;
	*pfn = address_of(symbol, flags);
	if (status)
		*status = *pfn ? CU_GET_PROC_ADDRESS_SUCCESS : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	return CUDA_SUCCESS;
}

CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags)
{
	return cuGetProcAddress_v2(symbol, pfn, version, flags, NULL);
}
