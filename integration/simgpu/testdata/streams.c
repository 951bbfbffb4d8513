/* SPDX-License-Identifier: Apache-2.0 */
/* Which stream waits for which: the default streams, events, host functions, values. */
#include <pthread.h>
#include <stdatomic.h>

#include "test.h"

static CUfunction spin, fill;
static CUdeviceptr word;
static CUcontext ctx;
static unsigned *host;

static void busy(CUstream s, unsigned ms)
{
	launch(spin, s, 1, 1, ARGS(&(unsigned){ ms * 1000 }));
}

static void put(CUstream s, unsigned value)
{
	launch(fill, s, 1, 1, ARGS(&word, &value, &(unsigned){ 1 }));
}

/* Legacy work waits for blocking streams and is waited for by them; not by others. */
static void legacy(void)
{
	CUstream blocking, other;
	CUevent after_other;

	OK(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
	OK(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&after_other, CU_EVENT_DISABLE_TIMING));

	busy(blocking, 20);
	put(blocking, 1);
	put(NULL, 2); /* behind it, though nothing says so */
	OK(cuStreamSynchronize(NULL));
	OK(cuStreamQuery(blocking));
	OK(cuMemcpyDtoH(host, word, 4));
	CHECK(*host == 2);

	hold(NULL);
	put(blocking, 3);
	CHECK(cuStreamQuery(blocking) == CUDA_ERROR_NOT_READY);
	/* The other stream does not wait for the legacy one. */
	OK(cuEventRecord(after_other, other));
	OK(cuEventQuery(after_other));
	let_go();
	OK(cuStreamSynchronize(blocking));
	OK(cuStreamQuery(CU_STREAM_LEGACY));

	/* A query of the legacy stream speaks for the blocking ones, not for the others. */
	hold(blocking);
	CHECK(cuStreamQuery(NULL) == CUDA_ERROR_NOT_READY);
	let_go();
	OK(cuCtxSynchronize());
	hold(other);
	OK(cuStreamQuery(NULL));
	let_go();
	OK(cuStreamSynchronize(other));
	OK(cuStreamDestroy(other));
	OK(cuStreamDestroy(blocking));
}

static void events(void)
{
	CUstream a, b;
	CUevent e;

	OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
	OK(cuStreamWaitEvent(b, e, 0)); /* never recorded: no wait */
	OK(cuStreamQuery(b));
	busy(a, 20);
	put(a, 4);
	OK(cuEventRecord(e, a));
	OK(cuStreamWaitEvent(b, e, 0));
	put(b, 5);
	OK(cuStreamSynchronize(b));
	OK(cuEventQuery(e));
	OK(cuMemcpyDtoH(host, word, 4));
	CHECK(*host == 5);
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuEventElapsedTime(&(float){ 0 }, e, e)); /* no timing */
	/* Destroying a busy stream or a recorded event is no problem. */
	busy(a, 5);
	OK(cuEventRecord(e, a));
	OK(cuEventDestroy(e));
	OK(cuStreamDestroy(a));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamQuery(a));
	OK(cuCtxSynchronize());
	OK(cuStreamDestroy(b));
}

static atomic_int calls;
static int turn[] = { 0, 1, 2, 3 };
static CUresult inside;

static void on_host(void *data)
{
	CUdeviceptr p;

	inside = cuMemAlloc(&p, 16);
	if (atomic_fetch_add(&calls, 1) + 1 != *(int *)data)
		atomic_store(&calls, 1000);
}

static void on_callback(CUstream s, CUresult status, void *data)
{
	(void)s;
	if (status != CUDA_SUCCESS || atomic_fetch_add(&calls, 1) + 1 != *(int *)data)
		atomic_store(&calls, 1000);
}

static void host_functions(void)
{
	CUstream s;

	OK(cuStreamCreate(&s, CU_STREAM_DEFAULT));
	busy(s, 5);
	OK(cuLaunchHostFunc(s, on_host, &turn[1]));
	put(s, 6);
	OK(cuStreamAddCallback(s, on_callback, &turn[2], 0));
	OK(cuStreamSynchronize(s));
	CHECK(atomic_load(&calls) == 2);
	CHECK(inside == CUDA_ERROR_NOT_PERMITTED);
	OK(cuStreamDestroy(s));
}

/* A stream waits for a value that another one writes later. */
static void values(void)
{
	CUstream a, b;

	OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
	OK(cuMemsetD32(word, 0, 1));
	OK(cuCtxSynchronize());
	OK(cuStreamWaitValue32(b, word, 7, CU_STREAM_WAIT_VALUE_EQ));
	CHECK(cuStreamQuery(b) == CUDA_ERROR_NOT_READY);
	busy(a, 5);
	OK(cuStreamWriteValue32(a, word, 7, 0));
	OK(cuStreamSynchronize(b));
	OK(cuStreamQuery(a));
	OK(cuStreamDestroy(a));
	OK(cuStreamDestroy(b));
}

static void *in_thread(void *arg)
{
	(void)arg;
	OK(cuCtxSetCurrent(ctx));
	OK(cuStreamQuery(CU_STREAM_PER_THREAD)); /* the other thread's is another one */
	busy(CU_STREAM_PER_THREAD, 1);
	OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
	return NULL;
}

static void per_thread(void)
{
	pthread_t t;

	OK(cuLaunchHostFunc(CU_STREAM_PER_THREAD, on_host, &turn[3]));
	hold(CU_STREAM_PER_THREAD);
	CHECK(cuStreamQuery(CU_STREAM_PER_THREAD) == CUDA_ERROR_NOT_READY);
	pthread_create(&t, NULL, in_thread, NULL);
	pthread_join(t, NULL);
	CHECK(cuStreamQuery(CU_STREAM_PER_THREAD) == CUDA_ERROR_NOT_READY);
	let_go();
	OK(cuCtxSynchronize());
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuStreamDestroy(CU_STREAM_PER_THREAD));
}

/* An event of the whole context is behind all its streams. */
static void whole_context(void)
{
	CUstream a, b;
	CUevent e;

	OK(cuStreamCreate(&a, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&b, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
	busy(a, 1);
	hold(b);
	OK(cuCtxRecordEvent(ctx, e));
	CHECK(cuEventQuery(e) == CUDA_ERROR_NOT_READY);
	let_go();
	OK(cuEventSynchronize(e));
	OK(cuStreamQuery(a));
	OK(cuStreamQuery(b));
	busy(a, 10);
	OK(cuEventRecord(e, a));
	OK(cuCtxWaitEvent(ctx, e));
	OK(cuStreamSynchronize(b));
	OK(cuStreamQuery(a));
	OK(cuStreamDestroy(a));
	OK(cuStreamDestroy(b));
	OK(cuEventDestroy(e));
}

int main(int argc, char **argv)
{
	ctx = begin(argc, argv, 0);
	spin = function("spin_us");
	fill = function("fill_u32");
	OK(cuMemAlloc(&word, 4));
	OK(cuMemAllocHost((void **)&host, 4));
	legacy();
	events();
	host_functions();
	values();
	per_thread();
	whole_context();

	/* Stream-ordered memory: free is in the order of the stream. */
	CUdeviceptr p;
	size_t before, during, after, total;
	OK(cuMemGetInfo(&before, &total));
	OK(cuMemAllocAsync(&p, 1 << 20, NULL));
	hold(NULL);
	OK(cuMemFreeAsync(p, NULL));
	OK(cuMemGetInfo(&during, &total));
	CHECK(during < before);
	let_go();
	OK(cuCtxSynchronize());
	OK(cuMemGetInfo(&after, &total));
	CHECK(after == before);
	return 0;
}
