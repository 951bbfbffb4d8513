/* SPDX-License-Identifier: Apache-2.0 */
/* Two threads in the driver at once, and threads of the application where one
 * would not expect them. The Go test plays vgpud. */
#include "test.h"

static CUcontext context;
static CUstream one, two;

static void start(void)
{
	OK(cuInit(0));
	OK(cuCtxCreate_v2(&context, 0, 0));
	say("ready");
	await();
}

/* The library's thread looks at work that is held; then it is released. */
static void watch(void)
{
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

static void *destroy_stream(void *s)
{
	OK(cuCtxSetCurrent(context));
	OK(cuStreamDestroy(s));
	return NULL;
}

/* The driver gives the handle of a stream out again before the call that
 * destroyed it has returned. */
static void stream_reused(void)
{
	pthread_t t;

	start();
	OK(cuStreamCreate(&one, 0));
	OK(launch(one));
	OK(cuStreamSynchronize(one));
	FAKE_HOLD(1);
	FAKE_REUSE(1);
	FAKE_STOP(IN_STREAM_DESTROY);
	CHECK(pthread_create(&t, NULL, destroy_stream, one) == 0);
	wait_stopped();
	OK(cuStreamCreate(&two, 0));
	CHECK(one == two);
	OK(launch(two));
	FAKE_GO();
	CHECK(pthread_join(t, NULL) == 0);
	watch();
}

static void *destroy_context(void *c)
{
	OK(cuCtxDestroy(c));
	return NULL;
}

static void context_reused(void)
{
	CUcontext again;
	pthread_t t;

	start();
	OK(launch(NULL));
	OK(cuStreamSynchronize(NULL));
	FAKE_HOLD(1);
	FAKE_REUSE(1);
	FAKE_STOP(IN_CONTEXT_DESTROY);
	CHECK(pthread_create(&t, NULL, destroy_context, context) == 0);
	wait_stopped();
	OK(cuCtxSetCurrent(NULL));
	OK(cuCtxCreate_v2(&again, 0, 0));
	CHECK(again == context);
	OK(launch(NULL));
	FAKE_GO();
	CHECK(pthread_join(t, NULL) == 0);
	watch();
}

static void *release_primary(void *unused)
{
	OK(cuDevicePrimaryCtxRelease(0));
	return unused;
}

static void *retain_first(void *unused)
{
	CUcontext primary;

	OK(cuDevicePrimaryCtxRetain(&primary, 0));
	return unused;
}

/* It takes long to make a context: threads make those of several GPUs at once. */
static void primaries(void)
{
	CUcontext primary;
	pthread_t t;

	start();
	FAKE_STOP(IN_PRIMARY_RETAIN);
	CHECK(pthread_create(&t, NULL, retain_first, NULL) == 0);
	wait_stopped();
	OK(cuDevicePrimaryCtxRetain(&primary, 1));
	FAKE_GO();
	CHECK(pthread_join(t, NULL) == 0);
}

/* It looks like the last release, and is not; meanwhile the other thread goes on. */
static void primary_kept(void)
{
	CUcontext primary;
	pthread_t t;

	start();
	OK(cuDevicePrimaryCtxRetain(&primary, 0));
	FAKE_RETAIN();
	OK(cuCtxSetCurrent(primary));
	OK(cuStreamCreate(&one, 0));
	FAKE_HOLD(1);
	OK(launch(NULL));
	OK(launch(one));
	FAKE_STOP(IN_PRIMARY_RELEASE);
	CHECK(pthread_create(&t, NULL, release_primary, NULL) == 0);
	wait_stopped();
	OK(launch(NULL)); /* a record is there already, and not to be found */
	FAKE_GO();
	CHECK(pthread_join(t, NULL) == 0);
	watch();
	OK(launch(one)); /* its record is back */
	OK(cuStreamSynchronize(one));
	say("synced");
	await();
	CHECK(FAKE_EVENTS() == 0); /* the old record's was given back */
}

/* The driver refuses: the stream is there, and a wait for it still proves. */
static void destroy_fails(void)
{
	start();
	OK(cuStreamCreate(&one, 0));
	FAKE_HOLD(1);
	OK(launch(one));
	FAKE_DESTROY_ERROR(CUDA_ERROR_NOT_PERMITTED);
	CHECK(cuStreamDestroy(one) == CUDA_ERROR_NOT_PERMITTED);
	FAKE_DESTROY_ERROR(0);
	say("launched");
	await();
	FAKE_HOLD(0);
	OK(cuStreamSynchronize(one));
	say("synced");
	await();
	CHECK_NO_VIOLATION();
}

static void *record(void *e)
{
	OK(cuCtxSetCurrent(context));
	OK(cuEventRecord(e, one));
	return NULL;
}

/* Both records are in the driver; the later one stands on an idle stream. */
static void event_recorded_twice(void)
{
	pthread_t t;
	CUevent e;

	start();
	OK(cuStreamCreate(&one, 0));
	OK(cuStreamCreate(&two, 0));
	OK(cuEventCreate(&e, 0));
	FAKE_HOLD(1);
	OK(launch(one));
	FAKE_STOP(IN_EVENT_RECORD);
	CHECK(pthread_create(&t, NULL, record, e) == 0);
	wait_stopped();
	OK(cuEventRecord(e, two));
	FAKE_GO();
	CHECK(pthread_join(t, NULL) == 0);
	OK(cuEventQuery(e));
	watch();
}

/* The record that began first comes last, on an idle stream; it is asked about
 * before its call has returned. */
static void event_recorded_late(void)
{
	pthread_t t;
	CUevent e;

	start();
	OK(cuStreamCreate(&one, 0));
	OK(cuStreamCreate(&two, 0));
	OK(cuEventCreate(&e, 0));
	FAKE_HOLD(1);
	OK(launch(two));
	FAKE_STOP(BEFORE_EVENT_RECORD);
	CHECK(pthread_create(&t, NULL, record, e) == 0);
	wait_stopped();
	OK(cuEventRecord(e, two));
	FAKE_STOP(IN_EVENT_RECORD);
	FAKE_GO();
	wait_stopped();
	OK(cuEventQuery(e));
	FAKE_GO();
	CHECK(pthread_join(t, NULL) == 0);
	watch();
}

CUresult plugin_launch(void);
CUresult plugin_launch(void)
{
	return launch(NULL);
}

/* A constructor waits at the gate, with the dynamic loader's lock. */
static void plugin(void)
{
	start();
	OK(launch(NULL));
	say("loading");
	CHECK(dlopen(getenv("PLUGIN"), RTLD_NOW));
	say("loaded");
	await();
}

/* More streams in one bucket than a reader without the lock walks along. */
static void crowd(void)
{
	CUstream s[200], first;

	start();
	FAKE_CROWD(1);
	for (int i = 0; i < 200; i++) {
		OK(cuStreamCreate(&s[i], 0));
		OK(launch(s[i]));
	}
	first = s[0];
	FAKE_HOLD(1);
	OK(launch(first));
	OK(launch(s[199])); /* the record found last is another one */
	OK(cuStreamDestroy(first));
	watch();
}

static const struct test tests[] = {
	{ "stream-reused", stream_reused },
	{ "context-reused", context_reused },
	{ "primary-kept", primary_kept },
	{ "primaries", primaries },
	{ "destroy-fails", destroy_fails },
	{ "event-recorded-twice", event_recorded_twice },
	{ "event-recorded-late", event_recorded_late },
	{ "plugin", plugin },
	{ "crowd", crowd },
	{ 0 },
};

int main(int argc, char **argv)
{
	return run_test(tests, argc, argv);
}
