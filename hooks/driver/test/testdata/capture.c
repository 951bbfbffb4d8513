/* SPDX-License-Identifier: Apache-2.0 */
/* Captured calls are not work; what was submitted before stays watched. */
#include "test.h"

static CUcontext context;
static CUstream one, two;
static CUevent event;

static void start(void)
{
	OK(cuInit(0));
	OK(cuCtxCreate_v2(&context, 0, 0));
	OK(cuStreamCreate(&one, 0));
	OK(cuStreamCreate(&two, 0));
	OK(cuEventCreate(&event, 0));
	say("ready");
	await();
}

static void passes(void)
{
	CUgraph graph;

	start();
	OK(cuStreamBeginCapture(one, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(launch(one));
	/* The second stream joins by waiting for an event of the first. */
	OK(cuEventRecord(event, one));
	OK(cuStreamWaitEvent(two, event, 0));
	OK(launch(two));
	CHECK(FAKE_LAUNCHES() == 0 && FAKE_CAPTURED() == 2);
	OK(cuStreamEndCapture(one, &graph));
	say("captured");
	await();
	OK(cuGraphLaunch((CUgraphExec)1, one));
	say("launched");
	await();
	CHECK_NO_VIOLATION();
}

/* Work in flight on the captured stream, on one that joins, on the legacy
 * stream and on a per-thread stream, when and while a capture is open. */
static void watched(void)
{
	CUgraph graph;

	start();
	FAKE_HOLD(1);
	OK(launch(one));
	OK(launch(two));
	OK(launch(NULL));
	OK(launch(CU_STREAM_PER_THREAD));
	OK(cuStreamBeginCapture(one, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuEventRecord(event, one));
	OK(cuStreamWaitEvent(two, event, 0));
	OK(launch(two));
	OK(launch(NULL)); /* legal beside a capture of a non-blocking stream */
	say("launched");
	await();
	wait_polled(8);
	say("looked");
	await();
	FAKE_HOLD(0);
	say("released");
	await();
	OK(cuStreamEndCapture(one, &graph));
	CHECK_NO_VIOLATION();
}

/* A capture whose stream is destroyed is over, and so is its count. */
static void abandoned(void)
{
	start();
	OK(cuStreamBeginCapture(one, CU_STREAM_CAPTURE_MODE_GLOBAL));
	OK(cuStreamDestroy(one));
	FAKE_HOLD(1);
	OK(launch(NULL));
	CHECK(FAKE_EVENTS() == 1); /* no probe: no capture is open */
	say("launched");
	await();
	wait_polled(3);
	say("looked");
	await();
	FAKE_HOLD(0);
	say("released");
	await();
	CHECK_NO_VIOLATION();
}

/* Legacy work of one context is in flight when a stream of another begins to
 * capture; the capturing thread then waits at the gate. */
static void other_context(void)
{
	CUcontext other;
	CUstream s, plain;
	CUgraph graph;

	start();
	FAKE_HOLD(1);
	OK(launch(NULL));
	OK(cuCtxCreate_v2(&other, 0, 0));
	OK(cuStreamCreate(&s, 0));
	OK(cuStreamCreate(&plain, 0));
	OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
	FAKE_HOLD(0);
	say("capturing");
	await();
	OK(launch(plain));
	say("went on");
	await();
	OK(cuStreamEndCapture(s, &graph));
	CHECK_NO_VIOLATION();
}

static pthread_barrier_t barrier;

static void meet(void)
{
	pthread_barrier_wait(&barrier);
}

/* Submits before the capture begins, and with again while it is open. */
static void *other(void *again)
{
	OK(cuCtxSetCurrent(context));
	OK(launch(CU_STREAM_PER_THREAD));
	meet();
	meet();
	if (again)
		OK(launch(CU_STREAM_PER_THREAD));
	meet();
	meet();
	return NULL;
}

static void beside(void *again)
{
	CUgraph graph;
	pthread_t t;

	start();
	CHECK(pthread_barrier_init(&barrier, NULL, 2) == 0);
	FAKE_HOLD(1);
	CHECK(pthread_create(&t, NULL, other, again) == 0);
	meet();
	OK(cuStreamBeginCapture(one, CU_STREAM_CAPTURE_MODE_GLOBAL));
	meet();
	meet();
	say("launched");
	await();
	wait_polled(8);
	say("looked");
	await();
	FAKE_HOLD(0);
	say("released");
	await();
	OK(cuStreamEndCapture(one, &graph));
	meet();
	CHECK(pthread_join(t, NULL) == 0);
	CHECK_NO_VIOLATION();
}

/* Work of another thread's own stream is in flight when a capture begins ... */
static void other_thread(void)
{
	beside(NULL);
}

/* ... and more is submitted to it meanwhile. */
static void other_thread_again(void)
{
	beside(&barrier);
}

static void *submit_once(void *unused)
{
	OK(cuCtxSetCurrent(context));
	OK(launch(CU_STREAM_PER_THREAD));
	return unused;
}

/* The thread has ended before the capture begins. */
static void ended_thread(void)
{
	CUgraph graph;
	pthread_t t;

	start();
	FAKE_HOLD(1);
	CHECK(pthread_create(&t, NULL, submit_once, NULL) == 0);
	CHECK(pthread_join(t, NULL) == 0);
	OK(cuStreamBeginCapture(one, CU_STREAM_CAPTURE_MODE_GLOBAL));
	say("launched");
	await();
	wait_polled(8);
	say("looked");
	await();
	FAKE_HOLD(0);
	say("released");
	await();
	OK(cuStreamEndCapture(one, &graph));
	CHECK_NO_VIOLATION();
}

static void *begin_capture(void *s)
{
	OK(cuCtxSetCurrent(context));
	OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
	return NULL;
}

/* The first capture puts an event behind the whole context: a second one that
 * begins at that moment would be broken by it. */
static void two_begin(void)
{
	pthread_t t[2];
	CUgraph graph;

	start();
	FAKE_HOLD(1);
	CHECK(pthread_create(&t[0], NULL, submit_once, NULL) == 0);
	CHECK(pthread_join(t[0], NULL) == 0);
	FAKE_STOP(BEFORE_CONTEXT_RECORD);
	CHECK(pthread_create(&t[0], NULL, begin_capture, one) == 0);
	wait_stopped();
	CHECK(pthread_create(&t[1], NULL, begin_capture, two) == 0);
	usleep(20000); /* long enough for it to begin */
	FAKE_GO();
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
	OK(cuStreamEndCapture(one, &graph));
	OK(cuStreamEndCapture(two, &graph));
	FAKE_HOLD(0);
	CHECK_NO_VIOLATION();
}

static void *destroy(void *c)
{
	OK(cuCtxDestroy(c));
	return NULL;
}

/* ... and so would a context that goes at that moment break it. */
static void context_goes(void)
{
	pthread_t t[2];
	CUcontext other, first;
	CUgraph graph;

	start();
	first = context;
	OK(cuCtxCreate_v2(&other, 0, 0));
	FAKE_HOLD(1);
	context = other;
	CHECK(pthread_create(&t[0], NULL, submit_once, NULL) == 0);
	CHECK(pthread_join(t[0], NULL) == 0);
	context = first;
	FAKE_STOP(BEFORE_CONTEXT_RECORD);
	CHECK(pthread_create(&t[0], NULL, begin_capture, one) == 0);
	wait_stopped();
	CHECK(pthread_create(&t[1], NULL, destroy, other) == 0);
	usleep(20000);
	FAKE_GO();
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
	OK(cuStreamEndCapture(one, &graph));
	FAKE_HOLD(0);
	CHECK_NO_VIOLATION();
}

static int working = 1;

static void *gpu(void *arg)
{
	while (__atomic_load_n(&working, __ATOMIC_SEQ_CST)) {
		FAKE_STEP();
		usleep(20);
	}
	return arg;
}

static void *submits(void *unused)
{
	OK(cuCtxSetCurrent(context));
	for (int i = 0; i < 1000; i++)
		OK(launch(CU_STREAM_PER_THREAD));
	return unused;
}

static void *captures(void *unused)
{
	CUstream s;
	CUgraph graph;

	OK(cuCtxSetCurrent(context));
	OK(cuStreamCreate(&s, 0));
	for (int i = 0; i < 1000; i++) {
		OK(cuStreamBeginCapture(s, CU_STREAM_CAPTURE_MODE_RELAXED));
		OK(launch(s));
		OK(cuStreamEndCapture(s, &graph));
		OK(launch(s));
	}
	return unused;
}

/* Threads that submit to their own streams, and threads that capture. */
static void storm(void)
{
	pthread_t t[4], g;

	start();
	FAKE_HOLD(1);
	CHECK(pthread_create(&g, NULL, gpu, NULL) == 0);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&t[i], NULL, i < 2 ? submits : captures, NULL) == 0);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
	CHECK(FAKE_LAUNCHES() == 4 * 1000);
	CHECK(FAKE_CAPTURED() == 2 * 1000);
	say("worked");
	await();
	__atomic_store_n(&working, 0, __ATOMIC_SEQ_CST);
	CHECK(pthread_join(g, NULL) == 0);
	CHECK_NO_VIOLATION();
}

static const struct test tests[] = {
	{ "passes", passes },
	{ "watched", watched },
	{ "abandoned", abandoned },
	{ "other-context", other_context },
	{ "other-thread", other_thread },
	{ "other-thread-again", other_thread_again },
	{ "ended-thread", ended_thread },
	{ "two-begin", two_begin },
	{ "context-goes", context_goes },
	{ "storm", storm },
	{ 0 },
};

int main(int argc, char **argv)
{
	return run_test(tests, argc, argv);
}
