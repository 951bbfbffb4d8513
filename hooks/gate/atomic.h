/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The few atomic operations that the gate uses, each with the reason for its
 * order. docs/grant-word.md has the whole argument.
 */
#ifndef VGPU_ATOMIC_H
#define VGPU_ATOMIC_H

#include <stdbool.h>
#include <stdint.h>

/* Counting into the gate and then loading the word, against changing the word
 * and then loading the count: each side must see the other's write or be seen
 * (Dekker), so all four are sequentially consistent. */
static inline uint64_t word_load(uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

static inline bool word_cas(uint64_t *word, uint64_t from, uint64_t to)
{
	return __atomic_compare_exchange_n(word, &from, to, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* The low 16 bits are the threads inside, the rest counts the submissions, so
 * that leaving does both at once. */
#define COUNT_INSIDE    UINT64_C(0xffff)
#define COUNT_SUBMITTED UINT64_C(0x10000)

static inline void count_in(uint64_t *count)
{
	__atomic_add_fetch(count, 1, __ATOMIC_SEQ_CST);
}

/* Out again without having submitted: the gate was closed. */
static inline void count_back(uint64_t *count)
{
	__atomic_sub_fetch(count, 1, __ATOMIC_RELEASE);
}

/* Release: what was submitted was recorded before, and whoever reads that
 * nobody is inside must see it in flight. */
static inline void count_out(uint64_t *count)
{
	__atomic_add_fetch(count, COUNT_SUBMITTED - 1, __ATOMIC_RELEASE);
}

static inline bool count_empty(uint64_t *count)
{
	return (__atomic_load_n(count, __ATOMIC_SEQ_CST) & COUNT_INSIDE) == 0;
}

static inline uint64_t count_submitted(uint64_t *count)
{
	return __atomic_load_n(count, __ATOMIC_RELAXED) / COUNT_SUBMITTED;
}

/* Two threads that publish the same rising number: the one that read it earlier
 * may come later, and must not take it back. */
static inline void stat_at_least(uint64_t *stat, uint64_t value)
{
	uint64_t old = __atomic_load_n(stat, __ATOMIC_RELAXED);

	while (old < value && !__atomic_compare_exchange_n(stat, &old, value, true, __ATOMIC_RELAXED, __ATOMIC_RELAXED))
		;
}

/* Storing IDLE and then loading wanted, against vgpud's storing wanted and then
 * loading the word: Dekker again. */
static inline uint32_t flag_load(uint32_t *flag)
{
	return __atomic_load_n(flag, __ATOMIC_SEQ_CST);
}

/* A try-lock: 1 takes it if it was 0, 0 gives it back. */
static inline uint32_t flag_swap(uint32_t *flag, uint32_t value)
{
	return __atomic_exchange_n(flag, value, __ATOMIC_SEQ_CST);
}

/* Raised before PENDING is sent, so that whoever gets it reads it: release. The
 * futex's own comparison orders it against the grant. */
static inline uint32_t waiting_raise(uint32_t *waiting)
{
	return __atomic_fetch_add(waiting, 1, __ATOMIC_SEQ_CST);
}

static inline void waiting_lower(uint32_t *waiting)
{
	__atomic_sub_fetch(waiting, 1, __ATOMIC_SEQ_CST);
}

/* Numbers for people and for accounts; no grant hangs on them. Relaxed: they
 * must only not tear. */
static inline uint64_t stat_load(uint64_t *stat)
{
	return __atomic_load_n(stat, __ATOMIC_RELAXED);
}

static inline void stat_store(uint64_t *stat, uint64_t value)
{
	__atomic_store_n(stat, value, __ATOMIC_RELAXED);
}

/* For the only thread that may write it now: no locked operation. */
static inline void stat_raise(uint64_t *stat, uint64_t by)
{
	stat_store(stat, stat_load(stat) + by);
}

static inline void tally(uint32_t *count)
{
	__atomic_store_n(count, __atomic_load_n(count, __ATOMIC_RELAXED) + 1, __ATOMIC_RELAXED);
}

static inline void cpu_relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield" ::: "memory");
#endif
}

#endif
