/* SPDX-License-Identifier: Apache-2.0 */
#include "stamps.h"

#include <stdio.h>
#include <stdlib.h>

#define HEAD 16 /* bytes before the pairs */
#define PAIR 16
#define TRIES 20
#define CALIBRATE 1000000 /* loops */

struct stamps stamps_open(CUfunction kernel, uint32_t capacity)
{
	struct stamps s = { .kernel = kernel, .capacity = capacity };

	CU(cuMemAlloc(&s.log, HEAD + PAIR * (size_t)capacity));
	CU(cuMemsetD8(s.log, 0, HEAD));
	CU(cuCtxSynchronize());
	return s;
}

void stamps_launch(const struct stamps *s, uint32_t loops, CUstream stream)
{
	uint32_t capacity = s->capacity;
	CUdeviceptr log = s->log;
	void *params[] = { &log, &capacity, &loops };

	CU(cuLaunchKernel(s->kernel, 1, 1, 1, 1, 1, 1, 0, stream, params, NULL));
}

/* The last of several: the first ones bring the clocks of an idle GPU up. */
uint64_t stamps_loops_per_us(CUfunction kernel)
{
	struct stamps s = stamps_open(kernel, TRIES);
	uint64_t log[HEAD / sizeof(uint64_t) + 2 * TRIES], ns;

	for (int i = 0; i < TRIES; i++)
		stamps_launch(&s, CALIBRATE, NULL);
	CU(cuMemcpyDtoH(log, s.log, sizeof(log)));
	CU(cuMemFree(s.log));
	ns = log[2 * TRIES + 1] - log[2 * TRIES];
	return ns ? (uint64_t)CALIBRATE * 1000 / ns : 1;
}

void stamps_say_clock(CUfunction kernel)
{
	uint64_t gpu = 0, cpu = 0, error = UINT64_MAX, log[(HEAD + PAIR) / sizeof(uint64_t)];

	for (int i = 0; i < TRIES; i++) {
		struct stamps one = stamps_open(kernel, 1);
		uint64_t from = now_ns(), to;

		stamps_launch(&one, 0, NULL);
		CU(cuStreamSynchronize(NULL));
		to = now_ns();
		CU(cuMemcpyDtoH(log, one.log, sizeof(log)));
		CU(cuMemFree(one.log));
		if (to - from < error * 2) {
			error = (to - from) / 2;
			gpu = log[2];
			cpu = from + error;
		}
	}
	printf("clock %llu %llu %llu\n", (unsigned long long)gpu, (unsigned long long)cpu, (unsigned long long)error);
}

void stamps_say_all(const struct stamps *s)
{
	size_t bytes = HEAD + PAIR * (size_t)s->capacity;
	uint64_t *log = malloc(bytes), n;

	if (!log)
		fail("no memory for the stamps");
	CU(cuMemcpyDtoH(log, s->log, bytes));
	n = log[0] < s->capacity ? log[0] : s->capacity;
	for (uint64_t i = 0; i < n; i++)
		printf("span %llu %llu\n", (unsigned long long)log[2 + 2 * i], (unsigned long long)log[3 + 2 * i]);
	printf("lost %llu\n", (unsigned long long)(log[0] - n));
	free(log);
}

void say_and_await(const char *line)
{
	char answer[16];

	printf("%s\n", line);
	fflush(stdout);
	if (!fgets(answer, sizeof(answer), stdin))
		return;
}
