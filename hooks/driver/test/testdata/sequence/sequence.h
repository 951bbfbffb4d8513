/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kinds of calls of a random sequence share. A kind is a file with one
 * function, which makes one call or a few that belong together, and writes what
 * they gave as lines. The output depends on the seed alone:
 *   - a call that may find work done or not yet (a query) shows the same for both;
 *   - memory is used on one stream only, its home, and read after a wait for that;
 *   - memory that a graph knows is not freed while the graph lives;
 *   - threads share nothing but the process: each has a context of its own. What
 *     all of a process share (primary contexts) is left to runs of one thread;
 *   - addresses and handles are never shown.
 */
#ifndef SEQUENCE_H
#define SEQUENCE_H

#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../cuda_abi.h"

#define BUFFERS 8
#define STREAMS 5              /* the first two are the default streams */
#define EVENTS  4
#define EXECS   2
#define POOLS   2
#define WORDS   512
#define CHUNK   (WORDS * 4)

/* The calls whose flavour and way of look-up the seed chooses. */
#define CALLS(X) \
	X(cuLaunchKernel, "cuLaunchKernel", "_ptsz") X(cuLaunchKernelEx, "cuLaunchKernelEx", "_ptsz") \
	X(cuLaunchCooperativeKernel, "cuLaunchCooperativeKernel", "_ptsz") \
	X(cuMemcpy, "cuMemcpy", "_ptds") X(cuMemcpyAsync, "cuMemcpyAsync", "_ptsz") \
	X(cuMemcpyHtoDAsync_v2, "cuMemcpyHtoDAsync", "_ptsz") X(cuMemcpyDtoHAsync_v2, "cuMemcpyDtoHAsync", "_ptsz") \
	X(cuMemcpyDtoDAsync_v2, "cuMemcpyDtoDAsync", "_ptsz") X(cuMemcpyDtoD_v2, "cuMemcpyDtoD", "_ptds") \
	X(cuMemcpyHtoD_v2, "cuMemcpyHtoD", "_ptds") X(cuMemcpyDtoH_v2, "cuMemcpyDtoH", "_ptds") \
	X(cuMemcpyPeerAsync, "cuMemcpyPeerAsync", "_ptsz") \
	X(cuMemcpy2D_v2, "cuMemcpy2D", "_ptds") X(cuMemcpy2DAsync_v2, "cuMemcpy2DAsync", "_ptsz") \
	X(cuMemcpy2DUnaligned_v2, "cuMemcpy2DUnaligned", "_ptds") \
	X(cuMemcpy3D_v2, "cuMemcpy3D", "_ptds") X(cuMemcpy3DAsync_v2, "cuMemcpy3DAsync", "_ptsz") \
	X(cuMemcpyHtoA_v2, "cuMemcpyHtoA", "_ptds") X(cuMemcpyAtoH_v2, "cuMemcpyAtoH", "_ptds") \
	X(cuMemcpyAtoHAsync_v2, "cuMemcpyAtoHAsync", "_ptsz") X(cuMemcpyAtoA_v2, "cuMemcpyAtoA", "_ptds") \
	X(cuMemcpyAtoD_v2, "cuMemcpyAtoD", "_ptds") X(cuMemcpyDtoA_v2, "cuMemcpyDtoA", "_ptds") \
	X(cuMemcpyBatchAsync_v2, "cuMemcpyBatchAsync", "_ptsz") X(cuMemcpy3DBatchAsync_v2, "cuMemcpy3DBatchAsync", "_ptsz") \
	X(cuMemcpyWithAttributesAsync, "cuMemcpyWithAttributesAsync", "_ptsz") \
	X(cuMemsetD32Async, "cuMemsetD32Async", "_ptsz") X(cuMemsetD8Async, "cuMemsetD8Async", "_ptsz") \
	X(cuMemsetD32_v2, "cuMemsetD32", "_ptds") X(cuMemsetD2D8Async, "cuMemsetD2D8Async", "_ptsz") \
	X(cuMemPrefetchAsync_v2, "cuMemPrefetchAsync", "_ptsz") X(cuStreamAttachMemAsync, "cuStreamAttachMemAsync", "_ptsz") \
	X(cuStreamSynchronize, "cuStreamSynchronize", "_ptsz") X(cuStreamQuery, "cuStreamQuery", "_ptsz") \
	X(cuStreamGetPriority, "cuStreamGetPriority", "_ptsz") X(cuStreamGetFlags, "cuStreamGetFlags", "_ptsz") \
	X(cuStreamWriteValue32_v2, "cuStreamWriteValue32", "_ptsz") X(cuStreamWaitValue32_v2, "cuStreamWaitValue32", "_ptsz") \
	X(cuStreamBatchMemOp_v2, "cuStreamBatchMemOp", "_ptsz") \
	X(cuEventRecord, "cuEventRecord", "_ptsz") X(cuEventRecordWithFlags, "cuEventRecordWithFlags", "_ptsz") \
	X(cuStreamWaitEvent, "cuStreamWaitEvent", "_ptsz") \
	X(cuGraphLaunch, "cuGraphLaunch", "_ptsz") X(cuGraphUpload, "cuGraphUpload", "_ptsz") \
	X(cuGraphInstantiateWithParams, "cuGraphInstantiateWithParams", "_ptsz") \
	X(cuLaunchHostFunc, "cuLaunchHostFunc", "_ptsz") X(cuStreamAddCallback, "cuStreamAddCallback", "_ptsz") \
	X(cuStreamBeginCapture_v2, "cuStreamBeginCapture", "_ptsz") X(cuStreamEndCapture, "cuStreamEndCapture", "_ptsz") \
	X(cuStreamIsCapturing, "cuStreamIsCapturing", "_ptsz") \
	X(cuMemAllocAsync, "cuMemAllocAsync", "_ptsz") X(cuMemAllocFromPoolAsync, "cuMemAllocFromPoolAsync", "_ptsz") \
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
	CUgraphExec exec[EXECS];   /* of captures */
	int exec_home[EXECS];
	struct buffer buffer[BUFFERS];
	CUmemoryPool pool[POOLS];
	unsigned host[WORDS];
	_Atomic unsigned called;   /* by host functions */
	/* What one kind alone uses; NULL until its first call. */
	struct vmm *vmm;
	struct managed *managed;
	struct arrays *arrays;
	struct graphs *graphs;
	struct values *values;
	struct pinned *pinned;
	struct old *old;
	FILE *out;
	char *text;
	size_t size;
#define POINTER(name, base, suffix) __typeof__(&name) name##_;
	CALLS(POINTER)
#undef POINTER
};

extern CUdevice device;

/* main.c */
unsigned pick(struct thread *t, unsigned n);
bool chance(struct thread *t, unsigned percent);
CUresult note(struct thread *t, CUresult r, const char *format, ...) __attribute__((format(printf, 3, 4)));
/* Writes what the words are, in short. */
void show_words(struct thread *t, const void *words, size_t n);
void show(struct thread *t, unsigned words);
/* Memory of 0 for a kind; ends the program if there is none. */
void *state_of(size_t size);
const char *kernel_text(const char *name);
CUfunction kernel(const char *name);

/* streams.c */
int some_stream(struct thread *t);
/* A stream that the program made, or -1. */
int own_stream(struct thread *t);
/* Whether all work of the stream is over, which no one can say while it is captured. */
bool settle_stream(struct thread *t, int s);

/* memory.c */
struct buffer *some_buffer(struct thread *t);
int which(struct thread *t, struct buffer *b);
bool settle(struct thread *t, struct buffer *b);
void mark_captured(struct thread *t, struct buffer *b);
/* In the place of an allocation: what a capture says to one. */
void allocate_in_capture(struct thread *t);
void end_capture(struct thread *t);

/* A kind each; the comment is in its file. */
void allocate(struct thread *t);
void release(struct thread *t);
void impossible(struct thread *t);
void set(struct thread *t);
void launch(struct thread *t);
void copy(struct thread *t);
void streams(struct thread *t);
void events(struct thread *t);
void values(struct thread *t);
void host_functions(struct thread *t);
void captures(struct thread *t);
void graphs(struct thread *t);
void vmm(struct thread *t);
void pools(struct thread *t);
void managed(struct thread *t);
void pinned(struct thread *t);
void arrays(struct thread *t);
void batches(struct thread *t);
void pointers(struct thread *t);
void functions(struct thread *t);
void modules(struct thread *t);
void contexts(struct thread *t);
void primary(struct thread *t);
void old_calls(struct thread *t);
void wrong(struct thread *t);
void stale(struct thread *t);

#endif
