/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Included before the gate's files: their atomic operations, with the orders
 * that they have there, and their system calls go to the explorer. What a
 * scenario never reaches (starting the gate, forking) keeps the real ones.
 */
#ifndef VGPU_EXPLORE_HOOK_H
#define VGPU_EXPLORE_HOOK_H

#define _GNU_SOURCE
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

uint64_t ex_load(const void *at, int order, const char *function);
void ex_store(void *at, uint64_t value, int order, const char *function);
uint64_t ex_add(void *at, uint64_t value, int order, const char *function);
uint64_t ex_swap(void *at, uint64_t value, int order, const char *function);
bool ex_cas(void *at, uint64_t *expected, uint64_t value, int order, int fail_order, const char *function);
void ex_relax(void);
long ex_futex(void *at, int operation, uint32_t value, const struct timespec *timeout);
void *ex_map(void);
void ex_unmap(void *chunk);
int ex_poll(struct pollfd *fds, nfds_t n, const struct timespec *timeout);

#define __atomic_load_n(at, order)            ((__typeof__(*(at)))ex_load(at, order, __func__))
#define __atomic_store_n(at, value, order)    ex_store(at, (uint64_t)(value), order, __func__)
/* In braces, since the sum may go unused. */
#define __atomic_add_fetch(at, value, order)  ({ (__typeof__(*(at)))ex_add(at, (uint64_t)(value), order, __func__); })
#define __atomic_sub_fetch(at, value, order)  __atomic_add_fetch(at, -(uint64_t)(value), order)
#define __atomic_fetch_add(at, value, order)  ((__typeof__(*(at)))(__atomic_add_fetch(at, value, order) - (value)))
#define __atomic_exchange_n(at, value, order) ((__typeof__(*(at)))ex_swap(at, (uint64_t)(value), order, __func__))
#define __atomic_compare_exchange_n(at, expected, value, weak, order, fail_order) ({ \
	uint64_t seen_ = (uint64_t)*(expected); \
	bool done_ = ex_cas(at, &seen_, (uint64_t)(value), order, fail_order, __func__); \
	*(expected) = (__typeof__(*(at)))seen_; \
	done_; \
})

/* An instruction, which no macro can stand in front of, on one architecture. */
#define cpu_relax unused_cpu_relax
#include "../atomic.h"
#undef cpu_relax
#define cpu_relax() ex_relax()

#define sched_yield()                        ex_relax()
#define syscall(nr, at, op, value, timeout, ...) ex_futex(at, op, value, timeout)
#define ppoll(fds, n, timeout, mask)         ex_poll(fds, n, timeout)
#define clock_gettime(clock, ts)             (*(ts) = (struct timespec){ .tv_sec = 1 })
#define pthread_sigmask(how, set, old)       ((void)(old))
#define pthread_setcancelstate(state, old)   (*(old) = 0)
#define pthread_setspecific(key, value)      ((void)(key), (void)(value), 0)
#define mmap(...)                            ex_map()
#define munmap(at, size)                     ex_unmap(at)
#define prctl(...)                           ((void)0)

#endif
