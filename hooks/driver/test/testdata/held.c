/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that are held because their stream is full. The Go test sets a bound of
 * an hour: what is held does not pass by itself. While nothing was measured, 32
 * pieces of work fill a stream.
 */
#include "test.h"

#include <errno.h>
#include <signal.h>

#define FULL 32

static CUcontext context;
static CUstream one, two;
static CUresult result;

static void start(void)
{
	OK(cuInit(0));
	OK(cuCtxCreate_v2(&context, 0, 0));
	OK(cuStreamCreate(&one, 0));
	OK(cuStreamCreate(&two, 0));
	say("ready");
	await();
	FAKE_HOLD(1);
}

/* Fills the stream, and submits once more. */
static void *fill(void *stream)
{
	OK(cuCtxSetCurrent(context));
	for (int i = 0; i < FULL; i++)
		OK(launch(stream));
	result = launch(stream);
	return NULL;
}

static pthread_t filling(CUstream stream)
{
	pthread_t t;

	CHECK(pthread_create(&t, NULL, fill, stream) == 0);
	while (FAKE_LAUNCHES() < FULL)
		usleep(100);
	usleep(20000); /* long enough for a thread that is not held */
	CHECK(FAKE_LAUNCHES() == FULL);
	return t;
}

static void join(pthread_t t)
{
	CHECK(pthread_join(t, NULL) == 0);
	CHECK(result == CUDA_SUCCESS);
	CHECK_NO_VIOLATION();
}

static void until_the_oldest_mark(CUstream stream)
{
	pthread_t t = filling(stream);


	OK(launch(two)); /* another stream has room */
	CHECK(FAKE_LAUNCHES() == FULL + 1);
	for (int i = 0; i < FULL / 2 - 1; i++)
		FAKE_STEP();
	usleep(20000);
	CHECK(FAKE_LAUNCHES() == FULL + 1);
	FAKE_STEP();
	join(t);
	CHECK(FAKE_LAUNCHES() == FULL + 2);
	FAKE_HOLD(0);
}

static void explicit_stream(void)
{
	start();
	until_the_oldest_mark(one);
}

static void legacy_stream(void)
{
	start();
	until_the_oldest_mark(NULL);
}

static void per_thread_stream(void)
{
	start();
	until_the_oldest_mark(CU_STREAM_PER_THREAD);
}

static void *once_more(void *stream)
{
	OK(cuCtxSetCurrent(context));
	OK(launch(stream));
	return NULL;
}

/* Several threads are held by one stream, and all go on. */
static void threads(void)
{
	pthread_t t, more[4];

	start();
	t = filling(one);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&more[i], NULL, once_more, one) == 0);
	usleep(20000);
	CHECK(FAKE_LAUNCHES() == FULL);
	FAKE_HOLD(0);
	join(t);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_join(more[i], NULL) == 0);
	CHECK(FAKE_LAUNCHES() == FULL + 5);
}

static void on_signal(int unused)
{
	int was = errno;

	(void)unused;
	OK(launch(one));
	errno = was;
}

/* A signal handler of the thread that is held may be what all waits for. */
static void handler(void)
{
	pthread_t t;

	start();
	signal(SIGUSR1, on_signal);
	t = filling(one);
	for (int i = 1; i <= 20; i++) {
		CHECK(pthread_kill(t, SIGUSR1) == 0);
		while (FAKE_LAUNCHES() < FULL + i)
			usleep(100);
	}
	FAKE_HOLD(0);
	join(t);
}

/* The context dies. */
static void dead(void)
{
	pthread_t t;

	start();
	t = filling(one);
	FAKE_STICKY(CUDA_ERROR_ILLEGAL_ADDRESS);
	CHECK(pthread_join(t, NULL) == 0);
	CHECK(result == CUDA_ERROR_ILLEGAL_ADDRESS);
}

/* The stream's work is waited for by another thread: no mark is asked. */
static void synced(void)
{
	pthread_t t;

	start();
	t = filling(one);
	FAKE_HOLD(0);
	OK(cuStreamSynchronize(one));
	join(t);
}

/* Without memory for marks there is no bound, and with it there is one again. */
static void no_memory(void)
{
	pthread_t t;

	start();
	FAKE_EVENT_ERROR(CUDA_ERROR_OUT_OF_MEMORY);
	for (int i = 0; i < 10 * FULL; i++)
		OK(launch(one));
	FAKE_EVENT_ERROR(0);
	for (int i = 0; i < 10 * FULL; i++)
		FAKE_STEP();
	CHECK(cuStreamQuery(one) == CUDA_SUCCESS);
	CHECK(pthread_create(&t, NULL, fill, one) == 0);
	while (FAKE_LAUNCHES() < 11 * FULL)
		usleep(100);
	usleep(20000);
	CHECK(FAKE_LAUNCHES() == 11 * FULL);
	FAKE_HOLD(0);
	join(t);
}

/* A captured call is not work: it is not held by a full stream. */
static void captured(void)
{
	CUgraph graph;

	start();
	for (int i = 0; i < FULL; i++)
		OK(launch(one));
	OK(cuStreamBeginCapture(one, CU_STREAM_CAPTURE_MODE_GLOBAL));
	for (int i = 0; i < 2 * FULL; i++)
		OK(launch(one));
	CHECK(FAKE_CAPTURED() == 2 * FULL);
	OK(cuStreamEndCapture(one, &graph));
	FAKE_HOLD(0);
	CHECK_NO_VIOLATION();
}

static void *in_callback(void *stream)
{
	FAKE_CALLBACK(1);
	result = launch(stream);
	FAKE_CALLBACK(0);
	return NULL;
}

/* In a host function nothing is held, and the driver's refusals there say nothing
 * about the stream: who is held stays so. */
static void callback(void)
{
	pthread_t t, c;

	start();
	t = filling(one);
	CHECK(pthread_create(&c, NULL, in_callback, one) == 0);
	CHECK(pthread_join(c, NULL) == 0);
	CHECK(result == CUDA_ERROR_NOT_PERMITTED);
	usleep(20000);
	CHECK(FAKE_LAUNCHES() == FULL);
	FAKE_HOLD(0);
	join(t);
}

/* Streams with marks come and go. */
static void churn(void)
{
	CUstream s;

	start();
	for (int i = 0; i < 200; i++) {
		OK(cuStreamCreate(&s, 0));
		FAKE_HOLD(1);
		for (int n = 0; n < FULL; n++)
			OK(launch(s));
		OK(cuStreamDestroy(s));
		FAKE_HOLD(0);
	}
	CHECK(FAKE_EVENTS() < 32);
	OK(launch(two));
	say("churned");
	await();
	CHECK(FAKE_EVENTS() == 0);
	CHECK_NO_VIOLATION();
}

static const struct test tests[] = {
	{ "explicit", explicit_stream },
	{ "legacy", legacy_stream },
	{ "per-thread", per_thread_stream },
	{ "threads", threads },
	{ "handler", handler },
	{ "dead", dead },
	{ "synced", synced },
	{ "no-memory", no_memory },
	{ "captured", captured },
	{ "callback", callback },
	{ "churn", churn },
	{ 0 },
};

int main(int argc, char **argv)
{
	return run_test(tests, argc, argv);
}
