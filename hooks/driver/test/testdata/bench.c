/* SPDX-License-Identifier: Apache-2.0 */
/* What a launch costs: the floor, the bare call, and the call through the
 * library, in turns, so that a noisy machine is noisy for all. Prints the least
 * of each in picoseconds a call. */
#include "test.h"

#include <stdbool.h>
#include <time.h>

#define CALLS  20000
#define ROUNDS 400

/* Launches that take 4 us, as real ones do (bench_driver.c). So few of them that
 * a round fits between two interruptions. */
#define LONG_CALLS 100
#define LONG_GRID  5

static __typeof__(&cuLaunchKernel) target;
static CUstream stream;
static unsigned long counter;

static void floor_add(void)
{
	for (int i = 0; i < CALLS; i++)
		__atomic_fetch_add(&counter, 1, __ATOMIC_SEQ_CST);
}

static void calls(void)
{
	__typeof__(target) f = __atomic_load_n(&target, __ATOMIC_RELAXED);

	for (int i = 0; i < CALLS; i++)
		f(NULL, 1, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

static void long_calls(void)
{
	__typeof__(target) f = __atomic_load_n(&target, __ATOMIC_RELAXED);

	for (int i = 0; i < LONG_CALLS; i++)
		f(NULL, LONG_GRID, 1, 1, 1, 1, 1, 0, stream, NULL, NULL);
}

static unsigned long ps(void (*run)(void), unsigned long times)
{
	struct timespec from, to;

	clock_gettime(CLOCK_MONOTONIC, &from);
	run();
	clock_gettime(CLOCK_MONOTONIC, &to);
	return ((unsigned long)(to.tv_sec - from.tv_sec) * 1000000000u + (unsigned long)to.tv_nsec - (unsigned long)from.tv_nsec) * 1000u / times;
}

int main(void)
{
	static const struct {
		const char *name;
		void (*run)(void);
		bool bare;
		CUstream stream; /* NULL: an explicit one */
		unsigned long times;
	} kind[] = {
		{ "add", floor_add, true, NULL, CALLS },
		{ "bare", calls, true, NULL, CALLS },
		{ "explicit", calls, false, NULL, CALLS },
		{ "legacy", calls, false, CU_STREAM_LEGACY, CALLS },
		{ "per-thread", calls, false, CU_STREAM_PER_THREAD, CALLS },
		{ "bare-4us", long_calls, true, NULL, LONG_CALLS },
		{ "explicit-4us", long_calls, false, NULL, LONG_CALLS },
	};
	enum { KINDS = sizeof(kind) / sizeof(kind[0]) };
	unsigned long least[KINDS], t;
	__typeof__(target) bare;
	CUcontext context;
	CUstream s;

	OK(cuInit(0));
	OK(cuCtxCreate_v2(&context, 0, 0));
	OK(cuStreamCreate(&s, 0));
	bare = (__typeof__(bare))fake("cuLaunchKernel");
	for (int round = 0; round < ROUNDS; round++) {
		for (int i = 0; i < KINDS; i++) {
			target = kind[i].bare ? bare : cuLaunchKernel;
			stream = kind[i].stream ? kind[i].stream : s;
			t = ps(kind[i].run, kind[i].times);
			least[i] = round == 0 || t < least[i] ? t : least[i];
		}
	}
	for (int i = 0; i < KINDS; i++)
		say("%s %lu", kind[i].name, least[i]);
	say("done");
	return 0;
}
