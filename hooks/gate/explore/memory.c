/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory models.
 *
 * sc    One memory, one operation at a time.
 *
 * tso   x86-64. A store goes into its thread's FIFO buffer, and from there to
 *       memory at any later time; the thread itself reads it back from there.
 *       Read-modify-writes of any order, stores that are sequentially consistent
 *       (xchg) and system calls empty the buffer first.
 *
 * weak  What C promises, of which arm64 makes use: each location has a list of
 *       stores, each thread a view, the oldest of each list that it may still
 *       read. A load takes any store from there on. A release store carries its
 *       thread's view, and an acquire load that takes it joins it to its own. A
 *       read-modify-write takes the newest store and hands on the view that this
 *       carried. A sequentially consistent load takes no store older than one
 *       that a sequentially consistent operation on the location has taken or
 *       made. Two accesses to an ordinary variable, one of them a write, without
 *       happens-before between them are an error.
 *
 * Bounds of weak: no thread lags more than LAG stores of one location behind.
 * Not in weak: a load that takes a store which comes later in the execution
 * (load buffering), a store that comes before an older one in its location's
 * list, and a total order of the sequentially consistent operations that differs
 * from that of the execution.
 */
#include <stdio.h>
#include <string.h>

#include "explore.h"

#define BUFFER 4
#define POOL   256
#define LAG    8               /* stores of one location that a thread may not have seen yet */

static struct {
	const char *name;
	void *at;
	uint8_t size, owner;       /* NOBODY: all threads use it */
	bool plain;                /* an ordinary variable: followed by LOCS of reads */
} locs[LOCS];
static uint32_t nlocs;

/* Without holes, zero where unused: states are compared byte by byte. */
static struct {
	uint64_t value[THREADS][BUFFER];
	uint8_t loc[THREADS][BUFFER];
	uint8_t used[THREADS];
} tso;

static struct {
	uint8_t view[THREADS][LOCS];
	uint8_t sc[LOCS];
	uint8_t count[LOCS];       /* of stores; of an ordinary variable: of changes */
	uint8_t sent[PROCESSES + 1][LOCS];
	uint64_t total;
	struct store {
		uint64_t value;
		uint8_t view[LOCS];
	} store[POOL];
} weak;

static bool acquires(int order)
{
	return order == __ATOMIC_ACQUIRE || order == __ATOMIC_ACQ_REL || order == __ATOMIC_SEQ_CST;
}

static bool releases(int order)
{
	return order == __ATOMIC_RELEASE || order == __ATOMIC_ACQ_REL || order == __ATOMIC_SEQ_CST;
}

static uint64_t get(uint32_t loc)
{
	return locs[loc].size == 4 ? *(uint32_t *)locs[loc].at : *(uint64_t *)locs[loc].at;
}

static uint64_t trim(uint32_t loc, uint64_t value)
{
	return locs[loc].size == 4 ? (uint32_t)value : value;
}

/* Makes a store visible to all. */
static void put(const struct thread *by, uint32_t loc, uint64_t value)
{
	uint64_t old = get(loc);

	if (locs[loc].size == 4)
		*(uint32_t *)locs[loc].at = (uint32_t)value;
	else
		*(uint64_t *)locs[loc].at = value;
	news(by, loc);
	watch(by, loc, old, get(loc));
}

static void join(uint8_t *to, const uint8_t *from)
{
	for (uint32_t l = 0; l < nlocs; l++)
		if (to[l] < from[l])
			to[l] = from[l];
}

/* The first store of loc; those of one location stand together. */
static struct store *stores(uint32_t loc)
{
	unsigned at = 0;

	for (uint32_t l = 0; l < loc; l++)
		if (!locs[l].plain)
			at += weak.count[l];
	return &weak.store[at];
}

static struct store *append(uint32_t loc, uint64_t value)
{
	struct store *s = stores(loc) + weak.count[loc];

	if (weak.total == POOL || weak.count[loc] == UINT8_MAX) {
		violation("too many stores are alive at once (POOL)");
		return s - 1;
	}
	memmove(s + 1, s, (size_t)(&weak.store[weak.total] - s) * sizeof(*s));
	memset(s, 0, sizeof(*s));
	s->value = trim(loc, value);
	weak.total++;
	weak.count[loc]++;
	return s;
}

static uint32_t add_loc(const char *name, void *at, size_t size, uint8_t owner)
{
	if (nlocs == LOCS) {
		violation("too many locations (LOCS)");
		return 0;
	}
	locs[nlocs].name = name;
	locs[nlocs].at = at;
	locs[nlocs].size = (uint8_t)size;
	locs[nlocs].owner = owner;
	return nlocs++;
}

uint32_t memory_loc(const char *name, void *at, size_t size, uint8_t owner)
{
	uint32_t loc = add_loc(name, at, size, owner);

	append(loc, get(loc));
	return loc;
}

void memory_plain(const char *name, void *at, uint8_t owner)
{
	uint32_t loc = add_loc(name, at, 8, owner);

	locs[loc].plain = true;
	weak.count[loc] = 1;
	/* When each thread read it, for races with a later write. */
	for (int t = 0; t < THREADS; t++) {
		if (threads[t].process != owner || !threads[t].used)
			continue;
		loc = add_loc(name, NULL, 0, owner);
		locs[loc].plain = true;
		locs[loc].size = (uint8_t)t;
		weak.count[loc] = 1;
	}
}

void memory_init(void)
{
	if (model == MODEL_TSO)
		state_region(&tso, sizeof(tso));
	else if (model == MODEL_WEAK) /* the stores are added by their number, see search.c */
		state_region(&weak, offsetof(__typeof__(weak), store));
}

const char *memory_name(uint32_t loc)
{
	return locs[loc].name;
}

bool memory_ordinary(uint32_t loc)
{
	return locs[loc].plain;
}

uint32_t memory_find(const void *at)
{
	for (uint32_t l = 0; l < nlocs; l++)
		if (locs[l].at == at)
			return l;
	return LOCS;
}

uint64_t memory_now(uint32_t loc)
{
	return get(loc);
}

void *memory_stores(size_t *size)
{
	*size = model == MODEL_WEAK ? weak.total * sizeof(weak.store[0]) : 0;
	return weak.store;
}

/* ---- weak -------------------------------------------------------------- */

/* The oldest store that a load of t may take. */
static uint8_t oldest(const struct thread *t, uint32_t loc, int order)
{
	uint8_t from = weak.view[t - threads][loc];

	return order == __ATOMIC_SEQ_CST && weak.sc[loc] > from ? weak.sc[loc] : from;
}

static void take(struct thread *t, uint32_t loc, uint8_t at, int order)
{
	uint8_t *view = weak.view[t - threads];

	if (view[loc] < at)
		view[loc] = at;
	if (acquires(order))
		join(view, stores(loc)[at].view);
	if (order == __ATOMIC_SEQ_CST && weak.sc[loc] < at)
		weak.sc[loc] = at;
}

static void make(struct thread *t, uint32_t loc, uint64_t value, int order, bool modify)
{
	uint8_t *view = weak.view[t - threads], at = weak.count[loc];
	struct store *s = append(loc, value);

	view[loc] = at;
	if (releases(order))
		join(s->view, view);
	if (modify)
		join(s->view, s[-1].view);
	if (order == __ATOMIC_SEQ_CST)
		weak.sc[loc] = at;
	put(t, loc, value);
}

/* Those that a CAS which fails may take: the newest decides, an older one only
 * if it holds something else. */
static unsigned old_failures(const struct thread *t, const struct op *op, uint8_t *at, unsigned want)
{
	struct store *s = stores(op->loc);
	unsigned n = 0;

	for (unsigned i = oldest(t, op->loc, op->fail_order); i + 1u < weak.count[op->loc]; i++) {
		if (s[i].value == op->expected)
			continue;
		if (++n == want) {
			*at = (uint8_t)i;
			return n;
		}
	}
	return n;
}

static uint64_t weak_do(struct thread *t, const struct op *op, unsigned option)
{
	uint8_t newest = (uint8_t)(weak.count[op->loc] - 1), at = newest;
	uint64_t old = get(op->loc);

	switch (op->kind) {
	case LOAD:
		at = (uint8_t)(newest - option);
		old = stores(op->loc)[at].value;
		take(t, op->loc, at, op->order);
		return old;
	case STORE:
		make(t, op->loc, op->value, op->order, false);
		return 0;
	case CAS:
		if (option)
			old_failures(t, op, &at, option);
		if (option || old != op->expected) {
			take(t, op->loc, at, op->fail_order);
			return stores(op->loc)[at].value;
		}
		take(t, op->loc, newest, op->order);
		make(t, op->loc, op->value, op->order, true);
		return old;
	default:
		take(t, op->loc, newest, op->order);
		make(t, op->loc, op->kind == ADD ? old + op->value : op->value, op->order, true);
		return old;
	}
}

static bool uses(const struct thread *t, uint32_t loc)
{
	return t->used && !t->done && (locs[loc].owner == NOBODY || locs[loc].owner == t->process);
}

static void drop(uint8_t *view, uint32_t loc, uint8_t n)
{
	view[loc] = view[loc] > n ? (uint8_t)(view[loc] - n) : 0;
}

/* Forgets the stores that nobody can read any more, so that states which differ
 * in nothing else are equal, and those that are too old (LAG): two threads that
 * go round in circles while a third one sleeps would make more and more. Of an
 * ordinary variable it only matters whether a thread knows the last change. */
void memory_collect(void)
{
	if (model != MODEL_WEAK)
		return;
	for (int t = 0; t < THREADS; t++)
		if (threads[t].done)
			memset(weak.view[t], 0, LOCS);
	for (uint32_t l = 0; l < nlocs; l++) {
		uint8_t n = (uint8_t)(weak.count[l] - 1), lag;

		for (int t = 0; t < THREADS; t++)
			if (uses(&threads[t], l) && weak.view[t][l] < n)
				n = weak.view[t][l];
		lag = locs[l].plain ? 1 : LAG;
		if (n + lag + 1 < weak.count[l])
			n = (uint8_t)(weak.count[l] - lag - 1);
		if (!n)
			continue;
		if (!locs[l].plain) {
			struct store *s = stores(l);

			memmove(s, s + n, (size_t)(&weak.store[weak.total] - (s + n)) * sizeof(*s));
			weak.total -= n;
			memset(&weak.store[weak.total], 0, n * sizeof(*s));
		}
		weak.count[l] = (uint8_t)(weak.count[l] - n);
		for (int t = 0; t < THREADS; t++)
			drop(weak.view[t], l, n);
		for (int m = 0; m <= PROCESSES; m++)
			drop(weak.sent[m], l, n);
		drop(weak.sc, l, n);
		for (uint64_t i = 0; i < weak.total; i++)
			drop(weak.store[i].view, l, n);
	}
}

bool memory_stale(const struct thread *t)
{
	if (model != MODEL_WEAK)
		return false;
	for (uint32_t l = 0; l < nlocs; l++)
		if (!locs[l].plain && uses(t, l) && weak.view[t - threads][l] + 1 != weak.count[l])
			return true;
	return false;
}

/* Time has passed: what was stored is visible. */
void memory_refresh(struct thread *t)
{
	for (uint32_t l = 0; l < nlocs; l++)
		if (!locs[l].plain)
			weak.view[t - threads][l] = (uint8_t)(weak.count[l] - 1);
}

void memory_send(struct thread *t, unsigned message)
{
	memory_drain(t);
	join(weak.sent[message], weak.view[t - threads]);
}

void memory_receive(struct thread *t, unsigned message)
{
	join(weak.view[t - threads], weak.sent[message]);
	memset(weak.sent[message], 0, LOCS);
}

/* An access of self to an ordinary variable; gcc's thread sanitizer calls these
 * before each. Without a race it reads what was written last, and the access
 * itself needs no help. */
static void plain(const void *at, bool write)
{
	uint32_t loc = memory_find(at);
	uint8_t *view;

	if (model != MODEL_WEAK || loc == LOCS || !locs[loc].plain)
		return;
	view = weak.view[self - threads];
	if (view[loc] + 1 != weak.count[loc])
		violation("%s: race on %s with a write", thread_name(self), locs[loc].name);
	for (uint32_t l = loc + 1; l < nlocs && !locs[l].at; l++) {
		if (write && view[l] + 1 != weak.count[l])
			violation("%s: race on %s with a read", thread_name(self), locs[loc].name);
		if (!write && &threads[locs[l].size] == self)
			view[l] = weak.count[l]++;
	}
	if (write)
		view[loc] = weak.count[loc]++;
}

void __tsan_init(void) {}
void __tsan_func_entry(void *caller) { (void)caller; }
void __tsan_func_exit(void) {}
void __tsan_atomic_signal_fence(int order) { (void)order; }
void __tsan_read1(void *at) { (void)at; }
void __tsan_read2(void *at) { (void)at; }
void __tsan_read4(void *at) { (void)at; }
void __tsan_read8(void *at) { plain(at, false); }
void __tsan_read16(void *at) { (void)at; }
void __tsan_write1(void *at) { (void)at; }
void __tsan_write2(void *at) { (void)at; }
void __tsan_write4(void *at) { (void)at; }
void __tsan_write8(void *at) { plain(at, true); }
void __tsan_write16(void *at) { plain(at, true); }
void __tsan_read_range(void *at, long size) { (void)at; (void)size; }
void __tsan_write_range(void *at, long size) { (void)at; (void)size; }

/* ---- tso --------------------------------------------------------------- */

bool memory_buffered(const struct thread *t)
{
	return tso.used[t - threads] != 0;
}

void memory_flush(struct thread *t)
{
	long i = t - threads;
	uint8_t loc = tso.loc[i][0];
	uint64_t value = tso.value[i][0];
	uint8_t left = --tso.used[i];

	memmove(tso.loc[i], tso.loc[i] + 1, left);
	memmove(tso.value[i], tso.value[i] + 1, left * sizeof(uint64_t));
	tso.loc[i][left] = 0;
	tso.value[i][left] = 0;
	trace("%-10s %-18s %s := %llx leaves the store buffer\n", thread_name(t), "", locs[loc].name, (unsigned long long)value);
	put(t, loc, value);
}

void memory_drain(struct thread *t)
{
	while (memory_buffered(t))
		memory_flush(t);
}

static uint64_t tso_load(const struct thread *t, uint32_t loc)
{
	long i = t - threads;

	for (int n = tso.used[i]; n-- > 0;)
		if (tso.loc[i][n] == loc)
			return tso.value[i][n];
	return get(loc);
}

uint64_t memory_own(const struct thread *t, uint32_t loc)
{
	return tso_load(t, loc);
}

/* ---- all --------------------------------------------------------------- */

unsigned memory_options(const struct thread *t, const struct op *op)
{
	uint8_t unused;

	if (model == MODEL_TSO && op->kind == STORE)
		return tso.used[t - threads] < BUFFER;
	if (model != MODEL_WEAK)
		return 1;
	if (op->kind == LOAD)
		return weak.count[op->loc] - oldest(t, op->loc, op->order);
	if (op->kind == CAS)
		return 1 + old_failures(t, op, &unused, UINT32_MAX);
	return 1;
}

uint64_t memory_do(struct thread *t, const struct op *op, unsigned option)
{
	uint64_t old;
	long i = t - threads;

	if (model == MODEL_WEAK)
		return weak_do(t, op, option);
	if (op->kind == LOAD)
		return tso_load(t, op->loc);
	if (model == MODEL_TSO && op->kind == STORE && op->order != __ATOMIC_SEQ_CST) {
		tso.loc[i][tso.used[i]] = (uint8_t)op->loc;
		tso.value[i][tso.used[i]++] = trim(op->loc, op->value);
		return 0;
	}
	memory_drain(t);
	old = get(op->loc);
	switch (op->kind) {
	case CAS:
		if (old == op->expected)
			put(t, op->loc, op->value);
		return old;
	case ADD:
		put(t, op->loc, old + op->value);
		return old;
	default: /* STORE, SWAP */
		put(t, op->loc, op->value);
		return old;
	}
}
