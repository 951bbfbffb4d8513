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
 * and then loading the counts: each side must see the other's write or be seen
 * (Dekker), so all of them are sequentially consistent. */
static inline uint64_t word_load(uint64_t *word)
{
	return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

static inline bool word_cas(uint64_t *word, uint64_t from, uint64_t to)
{
	return __atomic_compare_exchange_n(word, &from, to, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

/* How deep a thread is inside the gate, in its own slot. It alone writes it; its
 * signal handlers leave it as they found it. So no increment need be atomic, and
 * of the two changes that a submission makes only the first orders anything
 * against the word: on x86-64 the one locked operation of a submission. */
static inline void slot_in(uint64_t *inside)
{
	__atomic_store_n(inside, __atomic_load_n(inside, __ATOMIC_RELAXED) + 1, __ATOMIC_SEQ_CST);
}

/* Release: what was submitted was recorded before, and whoever reads that nobody
 * is inside must see it in flight. */
static inline void slot_out(uint64_t *inside)
{
	__atomic_store_n(inside, __atomic_load_n(inside, __ATOMIC_RELAXED) - 1, __ATOMIC_RELEASE);
}

static inline bool slot_empty(uint64_t *inside)
{
	return __atomic_load_n(inside, __ATOMIC_SEQ_CST) == 0;
}

/* Acquire and release: who takes a slot goes on with the counts that its last
 * user left. */
static inline bool slot_take(uint32_t *taken)
{
	uint32_t free = 0;

	return __atomic_load_n(taken, __ATOMIC_RELAXED) == 0 &&
	       __atomic_compare_exchange_n(taken, &free, 1, false, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED);
}

static inline void slot_free(uint32_t *taken)
{
	__atomic_store_n(taken, 0, __ATOMIC_RELEASE);
}

/* How many slots are to be looked at, raised to n before the n-th is used for the
 * first time. A part of counting in: it is written, or read as large enough,
 * before the word is loaded, and read after the word was changed. */
static inline uint32_t slots_used(uint32_t *used)
{
	return __atomic_load_n(used, __ATOMIC_SEQ_CST);
}

static inline void slots_reach(uint32_t *used, uint32_t n)
{
	uint32_t old = __atomic_load_n(used, __ATOMIC_SEQ_CST);

	while (old < n && !__atomic_compare_exchange_n(used, &old, n, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		;
}

/* A chunk of slots is appended before its slots are counted as used, and never
 * changes: release, so that it is seen as it was made. NULL, or what is there. */
static inline void *chunk_append(void *next, void *chunk)
{
	void *there = NULL;

	__atomic_compare_exchange_n((void **)next, &there, chunk, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
	return there;
}

static inline void *chunk_next(void *next)
{
	return __atomic_load_n((void **)next, __ATOMIC_ACQUIRE);
}

/* The count of the threads that have no slot. The low 16 bits are those inside,
 * the rest counts the submissions, so that leaving does both at once. */
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
