/* SPDX-License-Identifier: Apache-2.0 */
/* Submissions, and how their completion is seen. The Go test plays vgpud. */
#include "test.h"

static CUcontext context;

static void start(void)
{
	OK(cuInit(0));
	OK(cuCtxCreate_v2(&context, 0, 0));
	say("ready");
	await();
}

static void launch_and_wait(void)
{
	start();
	OK(launch(NULL));
	say("launched");
	await();
	OK(cuStreamSynchronize(NULL));
	say("synced");
	await();
}

/* Work on a stream is held; the library's thread looks, and must not see it
 * complete; then it is released, and must be seen. */
static void hold(CUstream stream)
{
	FAKE_HOLD(1);
	OK(launch(stream));
	say("launched");
	await(); /* somebody wants the GPU now */
	wait_polled(3);
	say("looked");
	await();
	FAKE_HOLD(0);
	say("released");
	await();
	CHECK_NO_VIOLATION();
}

static void async_explicit(void)
{
	CUstream s;

	start();
	OK(cuStreamCreate(&s, 0));
	hold(s);
}

static void async_legacy(void)
{
	start();
	hold(NULL);
}

static void async_per_thread(void)
{
	start();
	hold(CU_STREAM_PER_THREAD);
}

static void destroyed_stream(void)
{
	CUstream s;

	start();
	OK(cuStreamCreate(&s, 0));
	FAKE_HOLD(1);
	OK(launch(s));
	OK(cuStreamDestroy(s));
	say("launched");
	await();
	wait_polled(3);
	say("looked");
	await();
	FAKE_HOLD(0);
	say("released");
	await();
	CHECK(FAKE_EVENTS() == 0);
	CHECK_NO_VIOLATION();
}

static void *submit_per_thread(void *unused)
{
	(void)unused;
	OK(cuCtxSetCurrent(context));
	OK(launch(CU_STREAM_PER_THREAD));
	return NULL;
}

static void ended_thread(void)
{
	pthread_t t;

	start();
	FAKE_HOLD(1);
	CHECK(pthread_create(&t, NULL, submit_per_thread, NULL) == 0);
	CHECK(pthread_join(t, NULL) == 0);
	say("launched");
	await();
	wait_polled(3);
	say("looked");
	await();
	FAKE_HOLD(0);
	say("released");
	await();
	CHECK(FAKE_EVENTS() == 0);
	CHECK_NO_VIOLATION();
}

/* Held for ever, but the context goes. */
static void destroyed_context(void)
{
	start();
	FAKE_HOLD(1);
	OK(launch(NULL));
	say("launched");
	await();
	OK(cuCtxDestroy(context));
	say("destroyed");
	await();
	CHECK_NO_VIOLATION();
}

static void released_primary(void)
{
	CUcontext primary, again;

	start();
	OK(cuDevicePrimaryCtxRetain(&primary, 0));
	OK(cuDevicePrimaryCtxRetain(&again, 0));
	OK(cuCtxSetCurrent(primary));
	FAKE_HOLD(1);
	OK(launch(NULL));
	OK(cuDevicePrimaryCtxRelease(0));
	say("released once");
	await();
	OK(cuDevicePrimaryCtxRelease(0));
	say("destroyed");
	await();
	CHECK_NO_VIOLATION();
}

static void sticky(void)
{
	start();
	FAKE_HOLD(1);
	OK(launch(NULL));
	FAKE_STICKY(CUDA_ERROR_LAUNCH_FAILED);
	say("launched");
	await();
}

/* The context dies between two launches: the probe of the second is refused. */
static void sticky_per_thread(void)
{
	start();
	FAKE_HOLD(1);
	OK(launch(CU_STREAM_PER_THREAD));
	FAKE_STICKY(CUDA_ERROR_ILLEGAL_ADDRESS);
	CHECK(launch(CU_STREAM_PER_THREAD) == CUDA_ERROR_ILLEGAL_ADDRESS);
	say("launched");
	await();
	CHECK(launch(CU_STREAM_PER_THREAD) == CUDA_ERROR_ILLEGAL_ADDRESS);
	say("told");
	await();
}

/* The driver has no memory for the probe; the thread that could name the stream
 * ends. */
static void unprobed_thread_by(CUresult error)
{
	pthread_t t;

	start();
	FAKE_HOLD(1);
	FAKE_EVENT_ERROR(error);
	CHECK(pthread_create(&t, NULL, submit_per_thread, NULL) == 0);
	CHECK(pthread_join(t, NULL) == 0);
	say("launched");
	await();
	if (error != CUDA_ERROR_OUT_OF_MEMORY)
		wait_polled(1); /* whether the context is dead */
	FAKE_EVENT_ERROR(0);
	wait_polled(3);
	say("looked");
	await();
	FAKE_HOLD(0);
	say("released");
	await();
	CHECK(FAKE_EVENTS() == 0);
	CHECK_NO_VIOLATION();
}

static void unprobed_thread(void)
{
	unprobed_thread_by(CUDA_ERROR_OUT_OF_MEMORY);
}

/* It has no file descriptor, or so: an error that also a dead context may give. */
static void unprobed_thread_system(void)
{
	unprobed_thread_by(CUDA_ERROR_OPERATING_SYSTEM);
}

/* The same when a stream is destroyed: there the call waits for it. */
static void *destroy_unprobed(void *s)
{
	OK(cuCtxSetCurrent(context));
	OK(cuStreamDestroy(s));
	return NULL;
}

/* While another thread ends what the work is on. */
static void looked_while(void *(*end)(void *), void *arg)
{
	pthread_t t;

	CHECK(pthread_create(&t, NULL, end, arg) == 0);
	say("launched");
	await();
	wait_polled(3);
	say("looked");
	await();
	FAKE_HOLD(0);
	CHECK(pthread_join(t, NULL) == 0);
	say("released");
	await();
	CHECK_NO_VIOLATION();
}

static void unprobed_stream_by(CUresult error)
{
	CUstream s;

	start();
	OK(cuStreamCreate(&s, 0));
	FAKE_HOLD(1);
	OK(launch(s));
	FAKE_EVENT_ERROR(error);
	looked_while(destroy_unprobed, s);
}

static void unprobed_stream(void)
{
	unprobed_stream_by(CUDA_ERROR_OUT_OF_MEMORY);
}

static void unprobed_stream_system(void)
{
	unprobed_stream_by(CUDA_ERROR_OPERATING_SYSTEM);
}

static void *destroy_green(void *green)
{
	OK(cuGreenCtxDestroy(green));
	return NULL;
}

/* A green context ends, and its streams do not: nor does what is in flight. */
static void green(void)
{
	CUstream s;

	start();
	OK(cuStreamCreate(&s, 0));
	FAKE_HOLD(1);
	OK(launch(s));
	OK(launch(CU_STREAM_PER_THREAD));
	looked_while(destroy_green, context); /* to the fake driver they are the same */
}

/* A context is attached once more: the first detach destroys nothing. */
static void detach(void)
{
	CUcontext c;

	start();
	FAKE_HOLD(1);
	OK(launch(NULL));
	OK(cuCtxAttach(&c, 0));
	CHECK(c == context);
	OK(cuCtxDetach(c));
	say("detached");
	await();
	OK(cuCtxDetach(c));
	say("destroyed");
	await();
	CHECK_NO_VIOLATION();
}

static void no_bytes(void)
{
	char byte;

	start();
	OK(launch(NULL));
	FAKE_HOLD(1);
	OK(launch(NULL));
	OK(cuMemcpyDtoH(&byte, 0, 0));
	say("copied");
	await();
	FAKE_HOLD(0);
	OK(cuMemcpyDtoH(&byte, 0, 1));
	say("arrived");
	await();
}

/* What each synchronising call proves, and what it does not. */
static void proofs(void)
{
	CUstream s;
	CUevent e;
	char buffer[4];

	start();
	OK(cuStreamCreate(&s, 0));
	OK(cuEventCreate(&e, 0));
	FAKE_HOLD(1);

	OK(launch(s));
	OK(cuEventRecord(e, s));
	OK(launch(s));
	FAKE_STEP();
	OK(cuEventSynchronize(e));
	say("busy: the event stands before the second launch");
	await();
	FAKE_STEP();
	CHECK(cuStreamQuery(s) == CUDA_SUCCESS);
	say("idle: the stream was asked");
	await();

	OK(launch(s));
	OK(cuEventRecord(e, s));
	CHECK(cuEventQuery(e) == CUDA_ERROR_NOT_READY);
	say("busy: the event is not ready");
	await();
	FAKE_STEP();
	OK(cuEventQuery(e));
	say("idle: the event stands behind everything");
	await();

	OK(launch(s));
	OK(cuEventRecord(e, NULL)); /* the other stream has nothing to do */
	OK(cuEventQuery(e));
	say("busy: the event is of another stream");
	await();
	FAKE_STEP();
	OK(cuCtxSynchronize());
	say("idle: the whole context was waited for");
	await();

	OK(launch(s));
	OK(cuEventRecord(e, s));
	cuGraphAddEventRecordNode(NULL, NULL, NULL, 0, e);
	FAKE_STEP();
	OK(cuEventQuery(e));
	say("busy: a graph may have recorded the event anew");
	await();
	OK(cuStreamSynchronize(s));
	say("idle: the stream was waited for");
	await();

	FAKE_HOLD(0);
	OK(launch(NULL));
	OK(cuMemcpyDtoH(buffer, 0, sizeof(buffer)));
	say("idle: the copy has arrived");
	await();
	OK(launch(s));
	OK(cuMemcpyDtoH(buffer, 0, sizeof(buffer)));
	say("busy: the other stream was not asked");
	await();
	CHECK_NO_VIOLATION();
}

/* The driver calls itself by exported names: no gate there. */
static void self_calls(void)
{
	CUmodule m;

	start();
	OK(cuModuleLoadData(&m, "x")); /* setup: it copies, inside */
	say("loaded");
	await();
}

static void multi(void)
{
	CUstream s[40];

	start();
	for (int i = 0; i < 40; i++)
		OK(cuStreamCreate(&s[i], 0));
	FAKE_HOLD(1);
	for (int i = 0; i < 40; i++)
		OK(launch(s[i]));
	say("launched");
	await();
	FAKE_HOLD(0);
	OK(cuCtxSynchronize());
	say("synced");
	await();
}

/* Streams come and go, alone on the GPU: nothing piles up. */
static void churn(void)
{
	CUstream s;

	start();
	for (int i = 0; i < 2000; i++) {
		OK(cuStreamCreate(&s, 0));
		FAKE_HOLD(1);
		OK(launch(s));
		OK(cuStreamDestroy(s));
		FAKE_HOLD(0);
	}
	CHECK(FAKE_EVENTS() < 16);
	say("churned");
	await();
	CHECK_NO_VIOLATION();
}

static void *worker(void *arg)
{
	CUstream s;
	CUevent e;

	OK(cuCtxSetCurrent(context));
	OK(cuEventCreate(&e, 0));
	for (int i = 0; i < 300; i++) {
		OK(cuStreamCreate(&s, 0));
		OK(launch(s));
		OK(launch(i % 3 ? NULL : CU_STREAM_PER_THREAD));
		OK(cuEventRecord(e, s));
		if (i % 4 == 0)
			OK(cuStreamSynchronize(s));
		if (i % 5 == 0)
			OK(cuEventSynchronize(e));
		if (i % 7 == 0)
			OK(cuCtxSynchronize());
		OK(cuStreamDestroy(s));
	}
	OK(cuEventDestroy(e));
	return arg;
}

static int working = 1;

/* The GPU: one piece of work of each stream after the other. */
static void *gpu(void *arg)
{
	while (__atomic_load_n(&working, __ATOMIC_SEQ_CST)) {
		FAKE_STEP();
		usleep(20);
	}
	return arg;
}

static void threads(void)
{
	pthread_t t[4], g;

	start();
	FAKE_HOLD(1);
	CHECK(pthread_create(&g, NULL, gpu, NULL) == 0);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&t[i], NULL, worker, NULL) == 0);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
	CHECK(FAKE_LAUNCHES() == 4 * 300 * 2);
	say("worked");
	await();
	__atomic_store_n(&working, 0, __ATOMIC_SEQ_CST);
	CHECK(pthread_join(g, NULL) == 0);
	CHECK_NO_VIOLATION();
}

/* Three streams with one, two and three pieces of work. In a drain they end one
 * after the other. */
static void shrinks(void)
{
	CUstream s[3];

	start();
	FAKE_HOLD(1);
	for (int i = 0; i < 3; i++) {
		OK(cuStreamCreate(&s[i], 0));
		for (int n = 0; n <= i; n++)
			OK(launch(s[i]));
	}
	say("launched");
	await();
	wait_polled(10);
	say("looked");
	for (int i = 0; i < 3; i++) {
		await();
		FAKE_STEP();
		say("stepped");
	}
	await();
	CHECK_NO_VIOLATION();
}

/* Work that was complete before the turn was revoked, though nobody knew, and
 * work that never ends. */
static void spins(void)
{
	CUstream s[2];
	CUevent e;

	start();
	FAKE_HOLD(1);
	for (int i = 0; i < 2; i++)
		OK(cuStreamCreate(&s[i], 0));
	OK(cuEventCreate(&e, 0));
	OK(launch(s[0]));
	OK(launch(s[1]));
	OK(cuEventRecord(e, s[1]));
	OK(launch(s[1]));
	OK(launch(s[1]));
	FAKE_STEP();
	say("launched");
	await();
	wait_polled(10);
	say("looked");
	await();
	OK(cuEventQuery(e)); /* the application itself learns of some progress */
	say("asked");
	await();
	wait_polled(10);
	say("looked again");
	await();
	FAKE_HOLD(0);
}

static void *launch_second(void *s)
{
	OK(cuCtxSetCurrent(context));
	OK(launch(s));
	say("passed");
	return NULL;
}

/* What is in flight ends only when a thread has submitted that stands at the
 * gate. */
static void depends(void)
{
	CUstream s[2];
	pthread_t t;

	start();
	OK(cuStreamCreate(&s[0], 0));
	OK(cuStreamCreate(&s[1], 0));
	FAKE_HOLD(1);
	OK(launch(s[0]));
	FAKE_DEPENDS(1);
	say("launched");
	await();
	CHECK(pthread_create(&t, NULL, launch_second, s[1]) == 0);
	wait_polled(10);
	say("looked");
	OK(cuStreamSynchronize(s[0]));
	CHECK(pthread_join(t, NULL) == 0);
	await();
	CHECK_NO_VIOLATION();
}

static const struct test tests[] = {
	{ "launch", launch_and_wait },
	{ "explicit", async_explicit },
	{ "legacy", async_legacy },
	{ "per-thread", async_per_thread },
	{ "destroyed-stream", destroyed_stream },
	{ "ended-thread", ended_thread },
	{ "destroyed-context", destroyed_context },
	{ "released-primary", released_primary },
	{ "sticky", sticky },
	{ "sticky-per-thread", sticky_per_thread },
	{ "unprobed-thread", unprobed_thread },
	{ "unprobed-stream", unprobed_stream },
	{ "unprobed-thread-system", unprobed_thread_system },
	{ "unprobed-stream-system", unprobed_stream_system },
	{ "green", green },
	{ "detach", detach },
	{ "no-bytes", no_bytes },
	{ "proofs", proofs },
	{ "self-calls", self_calls },
	{ "multi", multi },
	{ "churn", churn },
	{ "threads", threads },
	{ "shrinks", shrinks },
	{ "spins", spins },
	{ "depends", depends },
	{ 0 },
};

int main(int argc, char **argv)
{
	return run_test(tests, argc, argv);
}
