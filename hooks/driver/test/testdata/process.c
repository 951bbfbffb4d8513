/* SPDX-License-Identifier: Apache-2.0 */
/* cuInit, fork and exit. */
#include "test.h"

static void inert(void)
{
}

static void visible(void)
{
	const char *v;
	CUresult r = cuInit(0);

	v = getenv("CUDA_VISIBLE_DEVICES");
	say("%d driver: %s", (int)r, FAKE_VISIBLE());
	say("process: %s", v ? v : "(unset)");
}

static void result(void)
{
	say("%d", (int)cuInit(0));
}

static void reentered(void)
{
	OK(cuInit(0));
	CHECK(FAKE_REENTERED() == 2);
}

static void before_init(void)
{
	int version = 0;

	CHECK(launch(NULL) == CUDA_ERROR_NOT_INITIALIZED);
	OK(cuDriverGetVersion(&version));
	CHECK(version == 13000);
	OK(cuParamSetf((CUfunction)0x1234, 7, 2.5f));
	CHECK(cuDeviceGetCount(&version) == CUDA_ERROR_NOT_SUPPORTED); /* the fake driver lacks it */
	say("passed");
}

static void twice(void)
{
	OK(cuInit(0));
	OK(cuInit(0));
	say("ready");
	await();
}

/* Forked before any call: each is a client of its own. */
static void fork_first(void)
{
	CUcontext context;
	int status;
	pid_t pid = fork();

	CHECK(pid >= 0);
	OK(cuInit(0));
	OK(cuCtxCreate_v2(&context, 0, 0));
	OK(launch(NULL));
	OK(cuStreamSynchronize(NULL));
	if (pid == 0)
		exit(0);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	say("both");
	await();
}

static void fork_after(void)
{
	CUcontext context;
	CUstream s;
	int status;
	pid_t pid;

	OK(cuInit(0));
	OK(cuCtxCreate_v2(&context, 0, 0));
	OK(cuStreamCreate(&s, 0));
	FAKE_HOLD(1);
	OK(launch(s));
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		/* The driver itself refuses, and nothing of ours stands before. */
		CHECK(cuInit(0) == CUDA_ERROR_NOT_INITIALIZED);
		CHECK(launch(s) == CUDA_ERROR_NOT_INITIALIZED);
		CHECK(cuStreamSynchronize(s) == CUDA_ERROR_NOT_INITIALIZED);
		exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	FAKE_HOLD(0);
	OK(cuStreamSynchronize(s));
	OK(launch(s));
	OK(cuStreamSynchronize(s));
	say("parent works");
	await();
}

static int churning = 1;

/* Streams come and go: the library's table of them is locked often. */
static void *churn(void *context)
{
	CUstream s;

	OK(cuCtxSetCurrent(context));
	while (__atomic_load_n(&churning, __ATOMIC_RELAXED)) {
		OK(cuStreamCreate(&s, 0));
		OK(launch(s));
		OK(cuStreamDestroy(s));
	}
	return NULL;
}

/* The thread that forks has used its own default stream, and ends in the child,
 * where nobody gives back what other threads of the parent had locked. */
static void fork_ends(void)
{
	CUcontext context;
	pthread_t t[2];
	int status;
	pid_t pid;

	OK(cuInit(0));
	OK(cuCtxCreate_v2(&context, 0, 0));
	OK(launch(CU_STREAM_PER_THREAD));
	for (int i = 0; i < 2; i++)
		CHECK(pthread_create(&t[i], NULL, churn, context) == 0);
	for (int i = 0; i < 100; i++) {
		pid = fork();
		CHECK(pid >= 0);
		if (pid == 0)
			pthread_exit(NULL);
		CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	}
	__atomic_store_n(&churning, 0, __ATOMIC_RELAXED);
	for (int i = 0; i < 2; i++)
		CHECK(pthread_join(t[i], NULL) == 0);
	say("ended");
}

static void *init(void *unused)
{
	cuInit(0);
	return unused;
}

/* A thread is cancelled in cuInit, while the vGPU waits for a GPU. */
static void init_cancelled(void)
{
	pthread_t t;

	CHECK(pthread_create(&t, NULL, init, NULL) == 0);
	await(); /* it waits */
	CHECK(pthread_cancel(t) == 0);
	say("cancelled");
	CHECK(pthread_join(t, NULL) == 0);
	OK(cuInit(0));
	say("works");
}

/* A refused process can not get the GPU by forking. */
static void fork_refused(void)
{
	int status;
	pid_t pid;

	CHECK(cuInit(0) != CUDA_SUCCESS);
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0) {
		CHECK(cuInit(0) == CUDA_ERROR_SYSTEM_NOT_READY);
		exit(0);
	}
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	say("refused");
}

static void late(void)
{
	FAKE_HOLD(0);
	say("late: %d", (int)launch(NULL));
}

/* Registered before cuInit, so that it runs after the library's own handler. */
static void exit_handler(void)
{
	CUcontext context;

	CHECK(atexit(late) == 0);
	OK(cuInit(0));
	OK(cuCtxCreate_v2(&context, 0, 0));
	say("ready");
	await();
	FAKE_HOLD(1);
	OK(launch(NULL));
	say("launched");
	await();
	exit(0);
}

static const struct test tests[] = {
	{ "inert", inert },
	{ "visible", visible },
	{ "result", result },
	{ "reentered", reentered },
	{ "before-init", before_init },
	{ "twice", twice },
	{ "fork-first", fork_first },
	{ "fork-after", fork_after },
	{ "fork-refused", fork_refused },
	{ "fork-ends", fork_ends },
	{ "init-cancelled", init_cancelled },
	{ "exit-handler", exit_handler },
	{ 0 },
};

int main(int argc, char **argv)
{
	return run_test(tests, argc, argv);
}
