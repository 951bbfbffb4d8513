/* SPDX-License-Identifier: Apache-2.0 */
/*
 * witness DIR NAME OF ROUNDS [WAIT_MS] computes in bursts on a queue that profiles, and
 * prints a line for each command, "command START END", as the implementation says, in
 * nanoseconds of CLOCK_MONOTONIC, as the simulated GPU's log; "latency" of each burst,
 * from its first call to its result, in microseconds; at the end "took", likewise, and
 * "sum". It begins when all of a meeting have made a file in DIR, and with 0 for ROUNDS
 * it ends when somebody makes DIR/stop.
 */
#define _GNU_SOURCE
#define CL_TARGET_OPENCL_VERSION 120
#include <CL/cl.h>
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define OK(call) do { \
	cl_int ok_ = (call); \
	if (ok_ != CL_SUCCESS) { \
		fprintf(stderr, "%s returned %d\n", #call, (int)ok_); \
		exit(1); \
	} \
} while (0)

#define ITEMS 64
#define BURST 4
#define NEAR  1000000 /* ns: far above what two clocks drift apart in a burst */

static const char *source =
	"kernel void spin(global uint *a, uint n) {"
	"	uint x = a[get_global_id(0)];"
	"	for (uint i = 0; i < n; i++) x = x * 1664525u + 1013904223u;"
	"	a[get_global_id(0)] = x; }";

static void meet(const char *dir, const char *name, int of)
{
	char path[512];
	FILE *f;
	int n;

	snprintf(path, sizeof(path), "%s/%s", dir, name);
	f = fopen(path, "w");
	if (!f) {
		perror(path);
		exit(1);
	}
	fclose(f);
	do {
		DIR *d = opendir(dir);
		struct dirent *e;

		n = 0;
		while (d && (e = readdir(d)))
			n += e->d_name[0] != '.';
		if (d)
			closedir(d);
		usleep(1000);
	} while (n < of);
}

static int stopped(const char *dir)
{
	char path[512];

	snprintf(path, sizeof(path), "%s/stop", dir);
	return access(path, F_OK) == 0;
}

static uint64_t now_ns(clockid_t clock)
{
	struct timespec ts;

	clock_gettime(clock, &ts);
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

static unsigned long now_us(void)
{
	return (unsigned long)(now_ns(CLOCK_MONOTONIC) / 1000);
}

/* What makes of a time of the implementation, which PoCL takes from
 * CLOCK_MONOTONIC_RAW, one of CLOCK_MONOTONIC: of some looks the shortest. */
static uint64_t clock_behind(void)
{
	uint64_t least = UINT64_MAX, behind = 0;

	for (int i = 0; i < 20; i++) {
		uint64_t before = now_ns(CLOCK_MONOTONIC_RAW), between = now_ns(CLOCK_MONOTONIC);
		uint64_t took = now_ns(CLOCK_MONOTONIC_RAW) - before;

		if (took < least) {
			least = took;
			behind = between - before;
		}
	}
	return behind;
}

int main(int argc, char **argv)
{
	int rounds = argc > 4 ? atoi(argv[4]) : 0, wait_ms = argc > 5 ? atoi(argv[5]) : 0;
	cl_uint n = 40000, out[ITEMS], sum = 0;
	size_t items = ITEMS, one = 1;
	unsigned long met;
	cl_event event[BURST];
	cl_platform_id platform;
	cl_device_id device;
	cl_command_queue queue;
	cl_context context;
	cl_program program;
	cl_kernel kernel;
	cl_mem a;
	cl_int r;

	if (argc < 5)
		return 2;
	OK(clGetPlatformIDs(1, &platform, NULL));
	OK(clGetDeviceIDs(platform, CL_DEVICE_TYPE_ALL, 1, &device, NULL));
	context = clCreateContext(NULL, 1, &device, NULL, NULL, &r);
	OK(r);
	queue = clCreateCommandQueue(context, device, CL_QUEUE_PROFILING_ENABLE, &r);
	OK(r);
	program = clCreateProgramWithSource(context, 1, &source, NULL, &r);
	OK(r);
	OK(clBuildProgram(program, 1, &device, "", NULL, NULL));
	kernel = clCreateKernel(program, "spin", &r);
	OK(r);
	for (int i = 0; i < ITEMS; i++)
		out[i] = (cl_uint)i;
	a = clCreateBuffer(context, CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR, sizeof(out), out, &r);
	OK(r);
	OK(clSetKernelArg(kernel, 0, sizeof(a), &a));
	OK(clSetKernelArg(kernel, 1, sizeof(n), &n));
	/* The first launch compiles it for its size. */
	OK(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &items, &one, 0, NULL, NULL));
	OK(clFinish(queue));
	meet(argv[1], argv[2], atoi(argv[3]));
	met = now_us();
	for (int i = 0; rounds ? i < rounds : !stopped(argv[1]); i++) {
		uint64_t began = now_ns(CLOCK_MONOTONIC), over, behind;

		for (int j = 0; j < BURST; j++)
			OK(clEnqueueNDRangeKernel(queue, kernel, 1, NULL, &items, &one, 0, NULL, &event[j]));
		OK(clFinish(queue));
		over = now_ns(CLOCK_MONOTONIC);
		behind = clock_behind();
		printf("latency %lu\n", (unsigned long)((over - began) / 1000));
		for (int j = 0; j < BURST; j++) {
			cl_ulong start, end;

			OK(clGetEventProfilingInfo(event[j], CL_PROFILING_COMMAND_START, sizeof(start), &start, NULL));
			OK(clGetEventProfilingInfo(event[j], CL_PROFILING_COMMAND_END, sizeof(end), &end, NULL));
			start += behind;
			end += behind;
			if (start + NEAR < began || start >= end || end > over + NEAR) {
				fprintf(stderr, "the implementation has another clock\n");
				return 1;
			}
			printf("command %llu %llu\n", (unsigned long long)start, (unsigned long long)end);
			OK(clReleaseEvent(event[j]));
		}
		if (wait_ms)
			usleep((useconds_t)wait_ms * 1000);
	}
	printf("took %lu\n", now_us() - met);
	OK(clEnqueueReadBuffer(queue, a, CL_TRUE, 0, sizeof(out), out, 0, NULL, NULL));
	for (int i = 0; i < ITEMS; i++)
		sum += out[i];
	printf("sum %u\n", sum);
	OK(clReleaseMemObject(a));
	OK(clReleaseKernel(kernel));
	OK(clReleaseProgram(program));
	OK(clReleaseCommandQueue(queue));
	OK(clReleaseContext(context));
	return 0;
}
