/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/futex.h>
#include <limits.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "machine.h"

/* The last part of a sleep is spun away: a timer comes this much late, ns. */
#define SPIN_NS 40000

uint64_t clock_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static void cpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static struct timespec to_timespec(uint64_t ns)
{
	return (struct timespec){
		.tv_sec = (time_t)(ns / 1000000000u),
		.tv_nsec = (long)(ns % 1000000000u),
	};
}

void clock_sleep_until(uint64_t ns, bool precise)
{
	uint64_t early = precise ? ns - SPIN_NS : ns;

	if (clock_ns() < early) {
		struct timespec ts = to_timespec(early);

		while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR)
			;
	}
	while (clock_ns() < ns)
		cpu_relax();
}

/* Returns on a wake, a changed value, a signal or at until_ns: callers loop. */
void sim_futex_wait(_Atomic uint32_t *word, uint32_t value, uint32_t bits, uint64_t until_ns)
{
	struct timespec ts = to_timespec(until_ns);

	syscall(SYS_futex, word, FUTEX_WAIT_BITSET, value, &ts, NULL, bits);
}

void sim_futex_wake(_Atomic uint32_t *word, uint32_t bits)
{
	syscall(SYS_futex, word, FUTEX_WAKE_BITSET, INT_MAX, NULL, NULL, bits);
}
