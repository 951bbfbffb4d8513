/* SPDX-License-Identifier: Apache-2.0 */
/* Captured calls are not work; what was submitted before stays watched. */
#include "test.h"

static CUstream one, two;
static CUevent event;

static void start(void)
{
	CUcontext context;

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

static const struct test tests[] = {
	{ "passes", passes },
	{ "watched", watched },
	{ "abandoned", abandoned },
	{ "other-context", other_context },
	{ 0 },
};

int main(int argc, char **argv)
{
	return run_test(tests, argc, argv);
}
