/* SPDX-License-Identifier: Apache-2.0 */
/* What the test programs share. They talk with the Go test in lines: say() and
 * await(). A failed CHECK ends the program with status 1. */
#ifndef VGPU_DRIVER_TEST_H
#define VGPU_DRIVER_TEST_H

#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../cuda_abi.h"

#ifndef VGPU_REAL_PATH
#define VGPU_REAL_PATH "/.vgpu/libcuda.so"
#endif

#define CHECK(cond) do { \
	if (!(cond)) { \
		fprintf(stderr, "%s:%d: %s is false\n", __FILE__, __LINE__, #cond); \
		exit(1); \
	} \
} while (0)

#define OK(call) do { \
	CUresult ok_ = (call); \
	if (ok_ != CUDA_SUCCESS) { \
		fprintf(stderr, "%s:%d: %s returned %d\n", __FILE__, __LINE__, #call, (int)ok_); \
		exit(1); \
	} \
} while (0)

static inline void say(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vprintf(format, args);
	va_end(args);
	printf("\n");
	fflush(stdout);
}

/* Waits for a line of the test. */
static inline void await(void)
{
	char line[64];

	CHECK(fgets(line, sizeof(line), stdin));
}

/* The test's side of the fake driver. */
static inline void *fake(const char *name)
{
	void *handle = dlopen(VGPU_REAL_PATH, RTLD_NOW | RTLD_LOCAL), *p;

	CHECK(handle);
	p = dlsym(handle, name);
	CHECK(p);
	return p;
}

#define FAKE_HOLD(on)    ((void (*)(int))fake("fake_hold"))(on)
#define FAKE_STEP()      ((void (*)(void))fake("fake_step"))()
#define FAKE_QUERIES()   ((int (*)(void))fake("fake_queries"))()
#define FAKE_STICKY(r)   ((void (*)(int))fake("fake_sticky"))(r)
#define FAKE_LAUNCHES()  ((int (*)(void))fake("fake_launches"))()
#define FAKE_CAPTURED()  ((int (*)(void))fake("fake_captured"))()
#define FAKE_SYNCS()     ((int (*)(void))fake("fake_syncs"))()
#define FAKE_REENTERED() ((int (*)(void))fake("fake_reentered"))()
#define FAKE_EVENTS()    ((int (*)(void))fake("fake_events"))()
#define FAKE_VISIBLE()   ((const char *(*)(void))fake("fake_visible"))()
/* The points of fake_driver.c at which a thread can be stopped. */
enum { IN_STREAM_DESTROY = 1, IN_CONTEXT_DESTROY, IN_EVENT_RECORD, IN_PRIMARY_RELEASE, BEFORE_EVENT_RECORD,
       BEFORE_CONTEXT_RECORD, IN_PRIMARY_RETAIN };
#define FAKE_STOP(at)    ((void (*)(int))fake("fake_stop"))(at)
#define FAKE_STOPPED()   ((int (*)(void))fake("fake_stopped"))()
#define FAKE_GO()        ((void (*)(void))fake("fake_go"))()
#define FAKE_CALLBACK(on) ((void (*)(int))fake("fake_callback"))(on)
#define FAKE_RETAIN()    ((void (*)(void))fake("fake_retain"))()
#define FAKE_REUSE(on)   ((void (*)(int))fake("fake_reuse"))(on)
#define FAKE_DEPENDS(on) ((void (*)(int))fake("fake_depends"))(on)
#define FAKE_CROWD(on)   ((void (*)(int))fake("fake_crowd"))(on)
#define FAKE_EVENT_ERROR(r)   ((void (*)(int))fake("fake_event_error"))(r)
#define FAKE_DESTROY_ERROR(r) ((void (*)(int))fake("fake_destroy_error"))(r)
#define CHECK_NO_VIOLATION() CHECK(((int (*)(void))fake("fake_violations"))() == 0)

static inline CUresult launch(CUstream s)
{
	return cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, s, NULL, (void **)0xe);
}

/* Until the library's thread has asked the driver n more times. */
static inline void wait_polled(int n)
{
	int from = FAKE_QUERIES();

	while (FAKE_QUERIES() < from + n)
		usleep(100);
}

/* Until a thread stands at the point of FAKE_STOP. */
static inline void wait_stopped(void)
{
	while (!FAKE_STOPPED())
		usleep(100);
}

struct test {
	const char *name;
	void (*run)(void);
};

static inline int run_test(const struct test *tests, int argc, char **argv)
{
	for (; argc > 1 && tests->name; tests++) {
		if (strcmp(tests->name, argv[1]) == 0) {
			tests->run();
			say("done");
			return 0;
		}
	}
	fprintf(stderr, "no such test\n");
	return 2;
}

#endif
