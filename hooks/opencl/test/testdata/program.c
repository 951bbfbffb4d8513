/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Cases of an OpenCL program, each a function by name. It talks with the Go test in
 * lines: say() and await(). A failed CHECK ends it with status 1. Most use native
 * kernels, functions of this program that run in a queue: they say when they run, and
 * can be held.
 */
#define _GNU_SOURCE
#define CL_TARGET_OPENCL_VERSION 300
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#include <CL/cl.h>
#include <dlfcn.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(cond) do { \
	if (!(cond)) { \
		fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #cond); \
		_exit(1); \
	} \
} while (0)

#define OK(call) do { \
	cl_int ok_ = (call); \
	if (ok_ != CL_SUCCESS) { \
		fprintf(stderr, "%s:%d: %s returned %d\n", __FILE__, __LINE__, #call, (int)ok_); \
		_exit(1); \
	} \
} while (0)

static void say(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	fflush(stdout);
}

static void await(void)
{
	char line[64];

	CHECK(fgets(line, sizeof(line), stdin));
}

static cl_platform_id platform;
static cl_device_id device;
static cl_context context;
static cl_command_queue queue; /* in order */

static void begin_device(void)
{
	OK(clGetPlatformIDs(1, &platform, NULL));
	OK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
}

static cl_command_queue make_queue(cl_command_queue_properties properties)
{
	cl_int r;
	cl_command_queue q = clCreateCommandQueue(context, device, properties, &r);

	OK(r);
	return q;
}

static void begin(void)
{
	cl_int r;

	begin_device();
	context = clCreateContext(NULL, 1, &device, NULL, NULL, &r);
	OK(r);
	queue = make_queue(0);
}

static void end(void)
{
	OK(clReleaseCommandQueue(queue));
	OK(clReleaseContext(context));
}

/* ---- native kernels --------------------------------------------------------- */

struct work {
	atomic_int ran;
	atomic_int go;             /* it may end */
};

static void CL_CALLBACK run_work(void *args)
{
	struct work *w = *(struct work **)args;

	atomic_store(&w->ran, 1);
	while (!atomic_load(&w->go))
		usleep(100);
	atomic_store(&w->ran, 2);
}

static cl_int enqueue(cl_command_queue q, struct work *w, cl_uint n, const cl_event *wait, cl_event *event)
{
	return clEnqueueNativeKernel(q, run_work, &w, sizeof(w), 0, NULL, NULL, n, wait, event);
}

static void wait_ran(struct work *w, int state)
{
	while (atomic_load(&w->ran) != state)
		usleep(100);
}

static cl_event user_event(void)
{
	cl_int r;
	cl_event e = clCreateUserEvent(context, &r);

	OK(r);
	return e;
}

static cl_uint references(cl_event e)
{
	cl_uint n = 0;

	OK(clGetEventInfo(e, CL_EVENT_REFERENCE_COUNT, sizeof(n), &n, NULL));
	return n;
}

static cl_int status(cl_event e)
{
	cl_int s = CL_QUEUED;

	OK(clGetEventInfo(e, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(s), &s, NULL));
	return s;
}

static pthread_t in_thread(void *(*run)(void *), void *arg)
{
	pthread_t t;

	CHECK(pthread_create(&t, NULL, run, arg) == 0);
	return t;
}

/* ---- the gate ---------------------------------------------------------------- */

/* Nothing of ours before a program asks for devices. */
static void inert(void)
{
	OK(clGetPlatformIDs(1, &platform, NULL));
	say("platform");
	await();
	begin();
	say("context");
	await();
	end();
}

static void waits(void)
{
	struct work w = { .go = 1 };

	begin();
	say("begins");
	OK(enqueue(queue, &w, 0, NULL, NULL));
	say("enqueued");
	OK(clFinish(queue));
	CHECK(atomic_load(&w.ran) == 2);
	say("finished");
	await();
	end();
}

/* A turn ends when the work is over, whether anybody waits for it or flushes or not. */
static void drains(void)
{
	struct work w = { 0 };

	begin();
	OK(enqueue(queue, &w, 0, NULL, NULL));
	OK(clFlush(queue));
	wait_ran(&w, 1);
	say("runs");
	await();
	atomic_store(&w.go, 1);
	say("goes");
	await();
	OK(clFinish(queue));
	end();
}

static void unflushed(void)
{
	struct work w = { .go = 1 };

	begin();
	OK(enqueue(queue, &w, 0, NULL, NULL));
	say("enqueued");
	await();
	end();
}

/* What waits for a user event is not in flight; setting it is work. */
static void held(void)
{
	struct work first = { .go = 1 }, second = { .go = 1 }, third = { .go = 1 };
	cl_command_queue out_of_order = make_queue(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
	cl_event user = user_event(), e[2];

	/* By the event, by the order of a queue, and by the event of what is held. */
	OK(enqueue(queue, &first, 1, &user, NULL));
	OK(enqueue(queue, &second, 0, NULL, &e[0]));
	OK(enqueue(out_of_order, &third, 1, &e[0], &e[1]));
	OK(clFlush(queue));
	OK(clFlush(out_of_order));
	say("held");
	await();
	CHECK(atomic_load(&first.ran) == 0 && atomic_load(&third.ran) == 0);
	say("sets");
	OK(clSetUserEventStatus(user, CL_COMPLETE));
	say("set");
	OK(clWaitForEvents(1, &e[1]));
	CHECK(atomic_load(&first.ran) == 2 && atomic_load(&second.ran) == 2 && atomic_load(&third.ran) == 2);
	say("ran");
	OK(clReleaseEvent(user));
	OK(clReleaseEvent(e[0]));
	OK(clReleaseEvent(e[1]));
	OK(clReleaseCommandQueue(out_of_order));
	await();
}

/* By a barrier, as OpenCL 1.2 has it; as 1.1 has it; and as 1.1 has one for events. */
static void held_by(bool lists, bool events)
{
	struct work before = { .go = 1 }, behind = { .go = 1 };
	cl_command_queue q = make_queue(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
	cl_event user = user_event(), first, marker;

	OK(enqueue(q, &before, 1, &user, &first));
	if (lists)
		OK(clEnqueueBarrierWithWaitList(q, 0, NULL, NULL));
	else if (events)
		OK(clEnqueueWaitForEvents(q, 1, &first));
	else
		OK(clEnqueueBarrier(q));
	if (lists)
		OK(clEnqueueMarkerWithWaitList(q, 0, NULL, &marker));
	else
		OK(clEnqueueMarker(q, &marker));
	OK(enqueue(q, &behind, 0, NULL, NULL));
	OK(clFlush(q));
	say("held");
	await();
	CHECK(atomic_load(&behind.ran) == 0);
	OK(clSetUserEventStatus(user, CL_COMPLETE));
	say("set");
	OK(clFinish(q));
	CHECK(atomic_load(&before.ran) == 2 && atomic_load(&behind.ran) == 2 && status(marker) == CL_COMPLETE);
	OK(clReleaseEvent(marker));
	OK(clReleaseEvent(first));
	OK(clReleaseEvent(user));
	OK(clReleaseCommandQueue(q));
	say("ran");
	await();
}

static void held_by_barrier(void)
{
	held_by(true, false);
}

static void held_by_old_barrier(void)
{
	held_by(false, false);
}

static void held_by_wait_for_events(void)
{
	held_by(false, true);
}

/* A thread that blocks waits for one that stands at the gate. */
static void *set_it(void *user)
{
	await();
	OK(clSetUserEventStatus((cl_event)user, CL_COMPLETE));
	say("set");
	return NULL;
}

static void blocking(void)
{
	cl_event user = user_event();
	int from = 7, to = 0;
	cl_int r;
	cl_mem b = clCreateBuffer(context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, sizeof(from), &from, &r);
	pthread_t t;

	OK(r);
	t = in_thread(set_it, user);
	say("reads");
	OK(clEnqueueReadBuffer(queue, b, CL_TRUE, 0, sizeof(to), &to, 1, &user, NULL));
	CHECK(to == 7);
	pthread_join(t, NULL);
	OK(clReleaseMemObject(b));
	OK(clReleaseEvent(user));
	say("read");
	await();
}

static atomic_int called;
static struct work late = { .go = 1 };
static cl_event late_event, late_user;

static void CL_CALLBACK enqueues(cl_event event, cl_int s, void *unused)
{
	(void)event;
	(void)unused;
	CHECK(s == CL_COMPLETE);
	say("called");
	OK(enqueue(queue, &late, 0, NULL, &late_event));
	say("enqueued");
	atomic_store(&called, 1);
}

/* A callback never waits: its work does. */
static void callback(void)
{
	cl_event user = user_event();

	OK(clSetEventCallback(user, CL_COMPLETE, enqueues, NULL));
	say("begins");
	await();
	OK(clSetUserEventStatus(user, CL_COMPLETE)); /* nothing is held: it does not wait */
	while (!atomic_load(&called))
		usleep(100);
	OK(clFlush(queue));
	say("returned");
	await();
	CHECK(atomic_load(&late.ran) == 0);
	say("waits");
	OK(clWaitForEvents(1, &late_event));
	CHECK(atomic_load(&late.ran) == 2);
	say("ran");
	OK(clReleaseEvent(late_event));
	OK(clReleaseEvent(user));
	await();
}

static void CL_CALLBACK sets(cl_event event, cl_int s, void *unused)
{
	(void)event;
	(void)s;
	(void)unused;
	OK(clSetUserEventStatus(late_user, CL_COMPLETE));
	say("set");
	atomic_store(&called, 1);
}

static void callback_sets(void)
{
	cl_event user = user_event(), e;

	late_user = user_event();
	OK(enqueue(queue, &late, 1, &late_user, &e));
	OK(clSetEventCallback(user, CL_COMPLETE, sets, NULL));
	say("begins");
	await();
	OK(clSetUserEventStatus(user, CL_COMPLETE));
	while (!atomic_load(&called))
		usleep(100);
	CHECK(clSetUserEventStatus(late_user, CL_COMPLETE) == CL_INVALID_OPERATION);
	say("returned");
	await();
	CHECK(atomic_load(&late.ran) == 0);
	say("waits");
	OK(clWaitForEvents(1, &e));
	say("ran");
	OK(clReleaseEvent(e));
	OK(clReleaseEvent(late_user));
	OK(clReleaseEvent(user));
	await();
}

/* More than may be in flight: the next one waits outside of the gate. */
static void bound(void)
{
	static struct work w[64];

	for (int i = 0; i < 64; i++)
		w[i].go = 1;
	w[0].go = 0;
	OK(enqueue(queue, &w[0], 0, NULL, NULL));
	OK(clFlush(queue));
	wait_ran(&w[0], 1);
	say("runs");
	/* It stands still: the room doubles, as all may depend on what waits. */
	for (int i = 1; i < 64; i++)
		OK(enqueue(queue, &w[i], 0, NULL, NULL));
	say("enqueued");
	await();
	w[0].go = 1;
	OK(clFinish(queue));
	CHECK(atomic_load(&w[63].ran) == 2);
	say("ran");
	await();
}

/* More behind what does not end by itself than the bound ever is. */
static void many(void)
{
	static struct work w[3000];
	const int n = sizeof(w) / sizeof(w[0]);

	OK(enqueue(queue, &w[0], 0, NULL, NULL));
	OK(clFlush(queue));
	wait_ran(&w[0], 1);
	for (int i = 1; i < n; i++) {
		w[i].go = 1;
		OK(enqueue(queue, &w[i], 0, NULL, NULL));
	}
	say("enqueued");
	w[0].go = 1;
	OK(clFinish(queue));
	CHECK(atomic_load(&w[n - 1].ran) == 2);
	say("ran");
	end();
}

/* ---- memory ------------------------------------------------------------------- */

#define MIB ((size_t)1 << 20)

static size_t told(cl_device_info what)
{
	cl_ulong n = 0;

	OK(clGetDeviceInfo(device, what, sizeof(n), &n, NULL));
	return n;
}

static void memory(void)
{
	cl_image_format format = { CL_RGBA, CL_UNORM_INT8 };
	cl_image_desc desc = { .image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 1024, .image_height = 1024 };
	cl_mem a, b, part;
	cl_buffer_region region = { 0, MIB };
	cl_int r;
	void *svm;

	CHECK(told(CL_DEVICE_GLOBAL_MEM_SIZE) == 64 * MIB);
	CHECK(told(CL_DEVICE_MAX_MEM_ALLOC_SIZE) <= 64 * MIB);
	a = clCreateBuffer(context, CL_MEM_READ_WRITE, 40 * MIB, NULL, &r);
	OK(r);
	say("buffer");
	await();
	part = clCreateSubBuffer(a, CL_MEM_READ_WRITE, CL_BUFFER_CREATE_TYPE_REGION, &region, &r);
	OK(r);
	say("part");
	await();
	CHECK(!clCreateBuffer(context, CL_MEM_READ_WRITE, 30 * MIB, NULL, &r) && r == CL_MEM_OBJECT_ALLOCATION_FAILURE);
	CHECK(!clCreateBuffer(context, CL_MEM_READ_WRITE, 65 * MIB, NULL, &r) && r == CL_INVALID_BUFFER_SIZE);
	CHECK(!clSVMAlloc(context, CL_MEM_READ_WRITE, 30 * MIB, 0));
	say("refused");
	await();
	b = clCreateImage(context, CL_MEM_READ_WRITE, &format, &desc, NULL, &r);
	OK(r);
	say("image");
	await();
	svm = clSVMAlloc(context, CL_MEM_READ_WRITE, 4 * MIB, 0);
	CHECK(svm);
	say("svm");
	await();
	clSVMFree(context, svm);
	OK(clReleaseMemObject(b));
	OK(clReleaseMemObject(a));
	say("part of it is in use");
	await();
	OK(clReleaseMemObject(part));
	say("freed");
	await();
}

/* ---- what the program sees ------------------------------------------------------ */

static void counts(void)
{
	struct work w = { 0 };
	cl_event e, user = user_event();
	cl_uint n = 0;

	OK(enqueue(queue, &w, 0, NULL, &e));
	say("event %u, user event %u", references(e), references(user));
	OK(clRetainEvent(e));
	say("event %u", references(e));
	OK(clReleaseEvent(e));
	OK(clGetCommandQueueInfo(queue, CL_QUEUE_REFERENCE_COUNT, sizeof(n), &n, NULL));
	say("queue %u", n);
	atomic_store(&w.go, 1);
	OK(clFinish(queue));
	say("over %d", status(e));
	OK(clReleaseEvent(e));
	OK(clReleaseEvent(user));
}

static void errors(void)
{
	struct work w = { .go = 1 };
	cl_event bad = user_event(), e;
	int x = 0;
	cl_int r;
	cl_mem b = clCreateBuffer(context, CL_MEM_READ_WRITE, 16, NULL, &r);

	OK(r);
	say("no queue %d", clEnqueueMarkerWithWaitList(NULL, 0, NULL, NULL));
	say("no queue, as of 1.1, %d %d", clEnqueueMarker(NULL, &e), clEnqueueBarrier(NULL));
	say("no event, as of 1.1, %d", clEnqueueMarker(queue, NULL));
	say("no list %d", enqueue(queue, &w, 1, NULL, NULL));
	say("no event %d", enqueue(queue, &w, 0, &bad, NULL));
	say("out of range %d", clEnqueueReadBuffer(queue, b, CL_TRUE, 12, 16, &x, 0, NULL, NULL));
	say("no object %d", clEnqueueUnmapMemObject(queue, NULL, &x, 0, NULL, NULL));
	say("no function %d", clEnqueueNativeKernel(queue, NULL, NULL, 0, 0, NULL, NULL, 0, NULL, NULL));
	say("no such status %d", clSetUserEventStatus(bad, 5));
	OK(enqueue(queue, &w, 1, &bad, &e));
	OK(clSetUserEventStatus(bad, -77));
	say("twice %d", clSetUserEventStatus(bad, CL_COMPLETE));
	say("waited %d", clWaitForEvents(1, &e));
	say("ended %s, ran %d", status(e) < 0 ? "with an error" : "well", atomic_load(&w.ran));
	OK(clReleaseEvent(e));
	OK(clReleaseEvent(bad));
	say("no context %d", (clCreateBuffer(NULL, CL_MEM_READ_WRITE, 16, NULL, &r), r));
	say("no size %d", (clCreateBuffer(context, CL_MEM_READ_WRITE, 0, NULL, &r), r));
}

/* ---- traps: programs that do something odd ---------------------------------------- */

static void never_signalled(void)
{
	struct work w = { .go = 1 }, other = { .go = 1 };
	cl_command_queue q = make_queue(0);
	cl_event user = user_event(), e;

	OK(enqueue(queue, &w, 1, &user, &e));
	for (int i = 0; i < 50; i++) {
		OK(enqueue(q, &other, 0, NULL, NULL));
		OK(clFinish(q));
	}
	say("held %d, the other queue %d", atomic_load(&w.ran), atomic_load(&other.ran));
	say("status %d", status(e) > CL_COMPLETE);
	/* And it ends so. */
	fflush(stdout);
	_exit(3);
}

static void released_early(void)
{
	static struct work w[100];
	cl_event e;

	for (int i = 0; i < 100; i++) {
		w[i].go = 1;
		OK(enqueue(queue, &w[i], 0, NULL, &e));
		OK(clReleaseEvent(e));
	}
	OK(clFinish(queue));
	say("ran %d", atomic_load(&w[99].ran));
	end();
}

static void queue_released(void)
{
	static struct work w[8];
	cl_command_queue q;

	for (int i = 0; i < 8; i++) {
		q = make_queue(i % 2 ? CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE : 0);
		OK(enqueue(q, &w[i], 0, NULL, NULL));
		OK(clReleaseCommandQueue(q));
	}
	for (int i = 0; i < 8; i++)
		w[i].go = 1;
	for (int i = 0; i < 8; i++)
		wait_ran(&w[i], 2);
	say("all ran");
	end();
}

static atomic_int gone;

static void CL_CALLBACK context_gone(cl_context c, void *unused)
{
	(void)c;
	(void)unused;
	atomic_fetch_add(&gone, 1);
}

static void *release_all(void *q)
{
	OK(clReleaseCommandQueue(q));
	OK(clReleaseContext(context));
	return NULL;
}

static void context_destroyed(void)
{
	static struct work w[20];

	for (int i = 0; i < 20; i++) {
		cl_int r;
		pthread_t t;

		context = clCreateContext(NULL, 1, &device, NULL, NULL, &r);
		OK(r);
		OK(clSetContextDestructorCallback(context, context_gone, NULL));
		cl_command_queue q = make_queue(0);

		OK(enqueue(q, &w[i], 0, NULL, NULL));
		OK(clFlush(q));
		t = in_thread(release_all, q);
		w[i].go = 1;
		pthread_join(t, NULL);
		wait_ran(&w[i], 2);
	}
	say("all ran");
	OK(clFinish(queue));
}

/* A process that is killed in the middle of its work, and others that go on. */
static void killed(void)
{
	int pipes[2], code;
	char c;
	pid_t pid;

	CHECK(pipe(pipes) == 0);
	pid = fork(); /* before OpenCL is used: two clients */
	CHECK(pid >= 0);
	if (pid == 0) {
		struct work w = { 0 };

		begin();
		OK(enqueue(queue, &w, 0, NULL, NULL));
		OK(clFlush(queue));
		wait_ran(&w, 1);
		CHECK(write(pipes[1], "x", 1) == 1);
		pause();
	}
	CHECK(read(pipes[0], &c, 1) == 1);
	kill(pid, SIGKILL);
	CHECK(waitpid(pid, &code, 0) == pid && WIFSIGNALED(code));
	begin();
	for (int i = 0; i < 20; i++) {
		struct work w = { .go = 1 };

		OK(enqueue(queue, &w, 0, NULL, NULL));
		OK(clFinish(queue));
		CHECK(atomic_load(&w.ran) == 2);
	}
	say("goes on");
	end();
}

/* A child that does not use OpenCL, while the parent computes. */
static void forks(void)
{
	int code;

	begin();
	for (int i = 0; i < 10; i++) {
		struct work w = { 0 };
		pid_t pid;

		OK(enqueue(queue, &w, 0, NULL, NULL));
		OK(clFlush(queue));
		pid = fork();
		CHECK(pid >= 0);
		if (pid == 0)
			_exit(42);
		CHECK(waitpid(pid, &code, 0) == pid && WIFEXITED(code) && WEXITSTATUS(code) == 42);
		w.go = 1;
		OK(clFinish(queue));
		CHECK(w.ran == 2);
	}
	say("the parent goes on");
	end();
}

/* A child of a client gets no device: it has no gate. */
static void child(void)
{
	cl_device_id d;
	int code;
	pid_t pid;

	begin();
	pid = fork();
	CHECK(pid >= 0);
	if (pid == 0)
		_exit(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &d, NULL) == CL_DEVICE_NOT_FOUND ? 42 : 1);
	CHECK(waitpid(pid, &code, 0) == pid && WIFEXITED(code));
	say("the child %d", WEXITSTATUS(code));
	end();
}

#define THREADS 4
#define ROUNDS  25

static void *shares(void *number)
{
	cl_command_queue q = make_queue((intptr_t)number % 2 ? CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE : 0);
	int in[16], out[16];
	cl_int r;
	cl_mem a = clCreateBuffer(context, CL_MEM_READ_WRITE, sizeof(in), NULL, &r);
	cl_mem b = clCreateBuffer(context, CL_MEM_READ_WRITE, sizeof(in), NULL, &r);

	OK(r);
	for (int i = 0; i < ROUNDS; i++) {
		cl_event e[3];

		for (int j = 0; j < 16; j++)
			in[j] = (int)(intptr_t)number * 1000 + i * 16 + j;
		OK(clEnqueueWriteBuffer(q, a, CL_FALSE, 0, sizeof(in), in, 0, NULL, &e[0]));
		OK(clEnqueueCopyBuffer(q, a, b, 0, 0, sizeof(in), 1, &e[0], &e[1]));
		OK(clEnqueueReadBuffer(q, b, CL_FALSE, 0, sizeof(in), out, 1, &e[1], &e[2]));
		OK(clFlush(q));
		OK(clWaitForEvents(1, &e[2]));
		CHECK(memcmp(in, out, sizeof(in)) == 0);
		for (int j = 0; j < 3; j++)
			OK(clReleaseEvent(e[j]));
	}
	OK(clReleaseMemObject(a));
	OK(clReleaseMemObject(b));
	OK(clReleaseCommandQueue(q));
	return NULL;
}

static void threads(void)
{
	pthread_t t[THREADS];

	for (intptr_t i = 0; i < THREADS; i++)
		t[i] = in_thread(shares, (void *)i);
	for (int i = 0; i < THREADS; i++)
		pthread_join(t[i], NULL);
	say("each has its own");
	end();
}

/* Every way to move data, checked by what comes out. */
static void CL_CALLBACK add_one(void *args)
{
	struct {
		int n;
		int *at;
	} *a = args;

	for (int i = 0; i < a->n; i++)
		a->at[i]++;
}

/* Calls that are work, and a function that returns an error. */
static unsigned calls;
#define WORK(call) do { \
	calls++; \
	OK(call); \
} while (0)

static void data(void)
{
	struct {
		int n;
		int *at;
	} args = { 64, NULL };
	const void *place = &args.at;
	cl_image_format format = { CL_R, CL_UNSIGNED_INT32 };
	cl_image_desc desc = { .image_type = CL_MEM_OBJECT_IMAGE2D, .image_width = 8, .image_height = 8 };
	size_t zero[3] = { 0 }, region[3] = { 8, 8, 1 }, bytes[3] = { 32, 8, 1 }, row, slice;
	int in[64], out[64] = { 0 }, pattern = 5, *mapped;
	cl_uint color[4] = { 9, 0, 0, 0 };
	cl_mem a, b, image, other;
	cl_event e;
	cl_int r;
	int *svm;

	for (int i = 0; i < 64; i++)
		in[i] = i * i;
	a = clCreateBuffer(context, CL_MEM_READ_WRITE, sizeof(in), NULL, &r);
	OK(r);
	b = clCreateBuffer(context, CL_MEM_READ_WRITE, sizeof(in), NULL, &r);
	OK(r);
	image = clCreateImage(context, CL_MEM_READ_WRITE, &format, &desc, NULL, &r);
	OK(r);
	other = clCreateImage(context, CL_MEM_READ_WRITE, &format, &desc, NULL, &r);
	OK(r);
	WORK(clEnqueueWriteBufferRect(queue, a, CL_TRUE, zero, zero, bytes, 32, 0, 32, 0, in, 0, NULL, NULL));
	WORK(clEnqueueCopyBufferRect(queue, a, b, zero, zero, bytes, 32, 0, 32, 0, 0, NULL, NULL));
	WORK(clEnqueueWriteBuffer(queue, b, CL_TRUE, 4, sizeof(in) - 4, out, 0, NULL, NULL));
	WORK(clEnqueueCopyBuffer(queue, a, b, 4, 4, sizeof(in) - 4, 0, NULL, NULL));
	WORK(clEnqueueMigrateMemObjects(queue, 1, &b, 0, 0, NULL, NULL));
	WORK(clEnqueueNativeKernel(queue, add_one, &args, sizeof(args), 1, &b, &place, 0, NULL, NULL));
	WORK(clEnqueueCopyBufferToImage(queue, b, image, 0, zero, region, 0, NULL, NULL));
	WORK(clEnqueueCopyImage(queue, image, other, zero, zero, region, 0, NULL, NULL));
	WORK(clEnqueueReadImage(queue, other, CL_TRUE, zero, region, 0, 0, out, 0, NULL, NULL));
	for (int i = 0; i < 64; i++)
		CHECK(out[i] == in[i] + 1);
	WORK(clEnqueueFillImage(queue, other, color, zero, region, 0, NULL, NULL));
	WORK(clEnqueueCopyImageToBuffer(queue, other, a, zero, region, 0, 0, NULL, NULL));
	WORK(clEnqueueReadBufferRect(queue, a, CL_TRUE, zero, zero, bytes, 32, 0, 32, 0, out, 0, NULL, NULL));
	CHECK(out[0] == 9 && out[63] == 9);
	WORK(clEnqueueWriteImage(queue, image, CL_FALSE, zero, region, 0, 0, in, 0, NULL, &e));
	OK(clWaitForEvents(1, &e));
	OK(clReleaseEvent(e));
	calls++;
	mapped = clEnqueueMapImage(queue, image, CL_TRUE, CL_MAP_READ, zero, region, &row, &slice, 0, NULL, NULL, &r);
	OK(r);
	CHECK(mapped[7] == 49);
	WORK(clEnqueueUnmapMemObject(queue, image, mapped, 0, NULL, NULL));
	WORK(clEnqueueFillBuffer(queue, b, &pattern, sizeof(pattern), 0, sizeof(in), 0, NULL, NULL));
	calls++;
	mapped = clEnqueueMapBuffer(queue, b, CL_TRUE, CL_MAP_READ | CL_MAP_WRITE, 0, sizeof(in), 0, NULL, &e, &r);
	OK(r);
	CHECK(mapped[0] == 5 && mapped[63] == 5 && status(e) == CL_COMPLETE);
	OK(clReleaseEvent(e));
	mapped[1] = 6;
	WORK(clEnqueueUnmapMemObject(queue, b, mapped, 0, NULL, NULL));
	WORK(clEnqueueReadBuffer(queue, b, CL_TRUE, 0, sizeof(out), out, 0, NULL, NULL));
	CHECK(out[1] == 6);
	svm = clSVMAlloc(context, CL_MEM_READ_WRITE, sizeof(in), 0);
	CHECK(svm);
	WORK(clEnqueueSVMMemcpy(queue, CL_TRUE, svm, in, sizeof(in), 0, NULL, NULL));
	WORK(clEnqueueSVMMemFill(queue, svm, &pattern, sizeof(pattern), 16, 0, NULL, NULL));
	WORK(clEnqueueSVMMigrateMem(queue, 1, (const void **)&svm, NULL, 0, 0, NULL, NULL));
	WORK(clEnqueueSVMMap(queue, CL_TRUE, CL_MAP_READ, svm, sizeof(in), 0, NULL, NULL));
	CHECK(svm[0] == 5 && svm[63] == 63 * 63);
	WORK(clEnqueueSVMUnmap(queue, svm, 0, NULL, NULL));
	WORK(clEnqueueSVMFree(queue, 1, (void **)&svm, NULL, NULL, 0, NULL, NULL));
	OK(clFinish(queue));
	OK(clReleaseMemObject(a));
	OK(clReleaseMemObject(b));
	OK(clReleaseMemObject(image));
	OK(clReleaseMemObject(other));
	say("all of it is right");
	say("%u calls", calls);
	end();
}

/* Order as OpenCL 1.1 has it: a marker with an event, a barrier without. They are no work. */
static void order(void)
{
	cl_command_queue q = make_queue(CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
	int in = 7, pattern = 5, out[2] = { 0 };
	cl_event copied, marker;
	cl_command_type type;
	cl_int r;
	cl_mem a = clCreateBuffer(context, CL_MEM_READ_WRITE, sizeof(out), NULL, &r);

	OK(r);
	for (int i = 0; i < 20; i++) {
		in = i;
		WORK(clEnqueueFillBuffer(q, a, &pattern, sizeof(pattern), 0, sizeof(out), 0, NULL, NULL));
		OK(clEnqueueBarrier(q));
		WORK(clEnqueueWriteBuffer(q, a, CL_FALSE, 0, sizeof(in), &in, 0, NULL, NULL));
		OK(clEnqueueMarker(q, &marker));
		WORK(clEnqueueCopyBuffer(q, a, a, 0, sizeof(in), sizeof(in), 1, &marker, &copied));
		OK(clEnqueueBarrier(q));
		WORK(clEnqueueReadBuffer(q, a, CL_FALSE, 0, sizeof(out), out, 0, NULL, NULL));
		OK(clFinish(q));
		CHECK(out[0] == i && out[1] == i);
		OK(clGetEventInfo(marker, CL_EVENT_COMMAND_TYPE, sizeof(type), &type, NULL));
		CHECK(type == CL_COMMAND_MARKER && status(marker) == CL_COMPLETE);
		/* PoCL may say that a queue is finished before it lets go of its events. */
		while (references(marker) != 1)
			sched_yield();
		OK(clReleaseEvent(copied));
		OK(clReleaseEvent(marker));
	}
	say("in order");
	say("%u calls", calls);
	OK(clReleaseMemObject(a));
	OK(clReleaseCommandQueue(q));
	end();
}

/* Kernels, from source, as most programs have them. */
static void kernels(void)
{
	const char *source = "kernel void add(global int *a, int n) { a[get_global_id(0)] += n; }";
	size_t size = 256;
	int out[256], sum = 0, n;
	cl_program p;
	cl_kernel k;
	cl_mem a;
	cl_int r;
	int zero = 0;

	p = clCreateProgramWithSource(context, 1, &source, NULL, &r);
	OK(r);
	OK(clBuildProgram(p, 1, &device, "", NULL, NULL));
	k = clCreateKernel(p, "add", &r);
	OK(r);
	a = clCreateBuffer(context, CL_MEM_READ_WRITE, sizeof(out), NULL, &r);
	OK(r);
	WORK(clEnqueueFillBuffer(queue, a, &zero, sizeof(zero), 0, sizeof(out), 0, NULL, NULL));
	OK(clSetKernelArg(k, 0, sizeof(a), &a));
	for (n = 1; n <= 200; n++) {
		OK(clSetKernelArg(k, 1, sizeof(n), &n));
		WORK(clEnqueueNDRangeKernel(queue, k, 1, NULL, &size, NULL, 0, NULL, NULL));
	}
	WORK(clEnqueueTask(queue, k, 0, NULL, NULL)); /* of one item, the first */
	WORK(clEnqueueReadBuffer(queue, a, CL_TRUE, 0, sizeof(out), out, 0, NULL, NULL));
	for (int i = 0; i < 256; i++)
		sum += out[i];
	say("sum %d", sum);
	say("%u calls", calls);
	OK(clReleaseMemObject(a));
	OK(clReleaseKernel(k));
	OK(clReleaseProgram(p));
	end();
}

/* A loader that asks the layer a second time gets no second layer, and the first stays. */
static void again(void)
{
	static void *dispatch[200];
	const void *ours;
	cl_uint entries;
	void *layer = dlopen("/vgpulib/libvgpu-opencl.so", RTLD_NOW | RTLD_NOLOAD);
	cl_int (CL_API_CALL *init)(cl_uint, const void *, cl_uint *, const void **);

	CHECK(layer);
	*(void **)&init = dlsym(layer, "clInitLayer");
	CHECK(init);
	say("again %d", init(200, dispatch, &entries, &ours));
	kernels();
}

/* The names of all devices that it sees. */
static void names(void)
{
	cl_device_id all[64];
	cl_uint n = 0;
	char name[128];

	OK(clGetPlatformIDs(1, &platform, NULL));
	OK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 64, all, &n));
	for (cl_uint i = 0; i < n; i++) {
		OK(clGetDeviceInfo(all[i], CL_DEVICE_NAME, sizeof(name), name, NULL));
		say("%s", name);
	}
}

/* An address by name leads to the layer, too. */
static void by_name(void)
{
	cl_int (CL_API_CALL *finish)(cl_command_queue) =
		(cl_int (CL_API_CALL *)(cl_command_queue))clGetExtensionFunctionAddressForPlatform(platform, "clEnqueueNoSuch");

	say("%s", finish ? "there is one" : "there is none");
	say("command buffers %s", clGetExtensionFunctionAddressForPlatform(platform, "clEnqueueCommandBufferKHR") ? "yes" : "no");
	end();
}

static const struct {
	const char *name;
	void (*run)(void);
	bool begins;               /* run has a context and a queue */
} cases[] = {
	{ "inert", inert, false },
	{ "waits", waits, false },
	{ "drains", drains, false },
	{ "unflushed", unflushed, false },
	{ "held", held, true },
	{ "held_by_barrier", held_by_barrier, true },
	{ "held_by_old_barrier", held_by_old_barrier, true },
	{ "held_by_wait_for_events", held_by_wait_for_events, true },
	{ "blocking", blocking, true },
	{ "callback", callback, true },
	{ "callback_sets", callback_sets, true },
	{ "bound", bound, true },
	{ "many", many, true },
	{ "memory", memory, true },
	{ "counts", counts, true },
	{ "errors", errors, true },
	{ "never_signalled", never_signalled, true },
	{ "released_early", released_early, true },
	{ "queue_released", queue_released, true },
	{ "context_destroyed", context_destroyed, true },
	{ "killed", killed, false },
	{ "forks", forks, false },
	{ "child", child, false },
	{ "threads", threads, true },
	{ "data", data, true },
	{ "kernels", kernels, true },
	{ "order", order, true },
	{ "again", again, true },
	{ "by_name", by_name, true },
	{ "names", names, false },
};

int main(int argc, char **argv)
{
	for (size_t i = 0; argc > 1 && i < sizeof(cases) / sizeof(cases[0]); i++) {
		if (strcmp(cases[i].name, argv[1]) != 0)
			continue;
		if (cases[i].begins)
			begin();
		cases[i].run();
		say("done");
		return 0;
	}
	fprintf(stderr, "no such case\n");
	return 2;
}
