/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads as coroutines, and the search over what they can do.
 *
 * A state is all that the next step can depend on: the threads' stacks and
 * registers, the memory, and what the scenario keeps. It is copied before a
 * choice and put back for the next one, and its hash says whether it was seen
 * before, so that each state is explored once however it was reached.
 */
#define _GNU_SOURCE
#include <link.h>
#include <linux/futex.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include "explore.h"

#define STACK   (64 * 1024)
#define UNUSED  1024           /* cleared below a stack: what calls left there is no state */
#define REGIONS 32

enum model model;
struct thread threads[THREADS];
struct thread *self;
bool tracing;

static char names[THREADS][24];
static uint8_t stacks[THREADS][STACK] __attribute__((aligned(64)));
static struct { void (*fn)(int); int arg; } starts[THREADS];
static jmp_buf scheduler, resumes[THREADS];
static struct { uint8_t *at; size_t size; } regions[REGIONS];
static int nregions;
static uint8_t *tls;
static size_t tls_size;
static bool violated;
static unsigned bound;         /* of preemptions in one execution, 0: none */
static struct { uint8_t last, preemptions; } order; /* last: thread + 1 */
static char why[256];

/* ---- threads ----------------------------------------------------------- */

const char *thread_name(const struct thread *t)
{
	return names[t - threads];
}

void violation(const char *fmt, ...)
{
	va_list ap;

	if (violated)
		return;
	violated = true;
	va_start(ap, fmt);
	vsnprintf(why, sizeof(why), fmt, ap);
	va_end(ap);
}

void trace(const char *fmt, ...)
{
	va_list ap;

	if (!tracing)
		return;
	va_start(ap, fmt);
	vprintf(fmt, ap);
	va_end(ap);
}

void state_region(void *at, size_t size)
{
	if (nregions == REGIONS)
		abort();
	regions[nregions].at = at;
	regions[nregions++].size = size;
}

/* The program's own thread-local variables are the gate's. */
static int find_tls(struct dl_phdr_info *info, size_t size, void *unused)
{
	(void)size;
	(void)unused;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		if (info->dlpi_phdr[i].p_type == PT_TLS) {
			tls = info->dlpi_tls_data;
			tls_size = info->dlpi_phdr[i].p_memsz;
		}
	}
	return 1; /* the program comes first */
}

static __attribute__((noinline)) void pause_self(void)
{
	void *sp;

#if defined(__x86_64__)
	__asm__ volatile("mov %%rsp, %0" : "=r"(sp));
#elif defined(__aarch64__)
	__asm__ volatile("mov %0, sp" : "=r"(sp));
#else
#error "how is the stack pointer read here?"
#endif
	self->sp = sp;
	if (_setjmp(resumes[self - threads]) == 0)
		_longjmp(scheduler, 1);
}

static void entry(void)
{
	long i = self - threads;

	starts[i].fn(starts[i].arg);
	self->done = true;
	self->sp = stacks[i] + STACK;
	_longjmp(scheduler, 1);
}

/* Runs t to the point in front of its next operation. */
static void run(struct thread *t)
{
	uint8_t *stack = stacks[t - threads], *from;

	self = t;
	memcpy(tls, t->tls, tls_size);
	if (_setjmp(scheduler) == 0)
		_longjmp(resumes[t - threads], 1);
	t = self;
	memcpy(t->tls, tls, tls_size);
	stack = stacks[t - threads];
	from = (uint8_t *)t->sp - stack > UNUSED ? (uint8_t *)t->sp - UNUSED : stack;
	memset(from, 0, (size_t)((uint8_t *)t->sp - from));
	if (t->done) {
		memset(resumes[t - threads], 0, sizeof(resumes[0]));
		memset(&t->op, 0, sizeof(t->op));
		t->changed = t->moved = false;
	}
}

void thread_new(uint8_t process, void (*fn)(int arg), int arg, const char *fmt, ...)
{
	va_list ap;
	int i = 0;

	while (threads[i].used)
		if (++i == THREADS)
			abort();
	va_start(ap, fmt);
	vsnprintf(names[i], sizeof(names[i]), fmt, ap);
	va_end(ap);
	threads[i].used = true;
	threads[i].process = process;
	threads[i].last = LOCS;
	starts[i].fn = fn;
	starts[i].arg = arg;
}

/* Runs each thread to the point in front of its first operation. */
static void start_threads(void)
{
	static ucontext_t context;

	dl_iterate_phdr(find_tls, NULL);
	if (tls_size > sizeof(threads[0].tls))
		abort();
	for (self = threads; self < threads + THREADS && self->used; self++) {
		getcontext(&context);
		context.uc_stack.ss_sp = stacks[self - threads];
		context.uc_stack.ss_size = STACK;
		makecontext(&context, entry, 0);
		memset(tls, 0, tls_size);
		if (_setjmp(scheduler) == 0)
			setcontext(&context);
		memcpy(self->tls, tls, tls_size);
	}
}

uint64_t perform(const struct op *op)
{
	self->op = *op;
	pause_self();
	return self->result;
}

void step(const char *name, unsigned (*options)(const struct op *), void (*act)(struct thread *, unsigned), int arg)
{
	struct op op;

	memset(&op, 0, sizeof(op));
	op.kind = STEP;
	op.name = name;
	op.options = options;
	op.act = act;
	op.arg = arg;
	perform(&op);
}

void news(const struct thread *by, uint32_t loc)
{
	for (int i = 0; i < THREADS; i++) {
		if (!threads[i].used || threads[i].done || &threads[i] == by)
			continue;
		/* Kept only where it is asked for: it would tell equal states apart. */
		threads[i].changed = threads[i].polls;
		if (threads[i].op.kind == RELAX && threads[i].last == loc)
			threads[i].moved = true;
	}
}

/* ---- operations that wait ---------------------------------------------- */

static unsigned options(const struct thread *t)
{
	const struct op *op = &t->op;

	if (!t->used || t->done || t->asleep)
		return 0;
	switch (op->kind) {
	case RELAX: /* another look sees the same until somebody changed it */
		return t->moved || memory_stale(t);
	case POLL:
		return (bells.nudge[t->process] ? 1 : 0) + (op->value && (t->changed || memory_stale(t)) ? 1 : 0);
	case STEP:
		return op->options ? op->options(op) : 1;
	case SLEEP:
	case WAKE:
		return 1;
	default:
		return memory_options(t, op);
	}
}

static const char *order_name(int order)
{
	static const char *const name[] = { "relaxed", "consume", "acquire", "release", "acq_rel", "seq_cst" };

	return name[order];
}

static void trace_op(const struct thread *t, const struct op *op, uint64_t result)
{
	static const char *const kind[] = { "load", "store", "add", "swap", "cas", "sleep", "wake", "relax", "poll", "" };

	if (!tracing)
		return;
	printf("%-10s %-18s %s", thread_name(t), op->name, kind[op->kind]);
	if (op->loc < LOCS && op->kind <= WAKE)
		printf(" %s", memory_name(op->loc));
	if (op->kind == CAS)
		printf(" %llx ->", (unsigned long long)op->expected);
	if (op->kind >= STORE && op->kind <= CAS)
		printf(" %llx", (unsigned long long)op->value);
	if (op->kind <= CAS)
		printf(" %s = %llx", order_name(op->order), (unsigned long long)result);
	if (op->kind == SLEEP)
		printf("%s", t->asleep ? "" : ": changed, goes on");
	printf("\n");
}

static void wake(uint32_t loc)
{
	for (int i = 0; i < THREADS; i++) {
		if (threads[i].asleep && threads[i].op.loc == loc) {
			threads[i].asleep = false;
			run(&threads[i]);
		}
	}
}

/* Does what t stands in front of, and lets it run on. */
static void go_on(struct thread *t, unsigned option)
{
	struct op op = t->op;
	bool nudge;

	t->result = 0;
	switch (op.kind) {
	case RELAX:
		if (!t->moved)
			memory_refresh(t);
		t->moved = false;
		break;
	case POLL:
		nudge = bells.nudge[t->process] && option == 0;
		if (nudge) {
			memory_receive(t, t->process);
			bells.nudge[t->process] = false;
		} else if (!t->changed) {
			memory_refresh(t);
		}
		t->changed = false;
		t->result = nudge;
		break;
	case STEP:
		self = t;
		op.act(t, option);
		break;
	case SLEEP:
		/* The kernel's own comparison, of the low half, under a lock. */
		memory_drain(t);
		t->asleep = (uint32_t)memory_now(op.loc) == (uint32_t)op.value;
		break;
	case WAKE:
		memory_drain(t);
		break;
	default:
		if (op.kind == LOAD) {
			t->last = op.loc;
			t->moved = false;
		}
		t->result = memory_do(t, &op, option);
	}
	trace_op(t, &op, t->result);
	if (!t->asleep && !violated)
		run(t);
	t->result = 0;
	if (op.kind == WAKE)
		wake(op.loc);
	memory_collect();
}

/* ---- choices ----------------------------------------------------------- */

/* Whether t can go on, and does not stand where it would wait for others. */
static bool running(const struct thread *t)
{
	return options(t) && t->op.kind != POLL && t->op.kind != RELAX && !t->op.options;
}

static bool preempts(int i)
{
	return bound && order.last && order.last != i + 1 && running(&threads[order.last - 1]);
}

/* What thread i can do now. */
static unsigned allowed(int i)
{
	return preempts(i) && order.preemptions == bound ? 0 : options(&threads[i]);
}

static unsigned count_choices(void)
{
	unsigned n = 0;

	for (int i = 0; i < THREADS; i++) {
		n += allowed(i);
		n += model == MODEL_TSO && memory_buffered(&threads[i]);
	}
	return n;
}

static void choose(unsigned choice)
{
	unsigned n;

	for (int i = 0; i < THREADS; i++) {
		n = allowed(i);
		if (choice < n) {
			if (bound) {
				order.preemptions = (uint8_t)(order.preemptions + preempts(i));
				order.last = (uint8_t)(i + 1);
			}
			go_on(&threads[i], choice);
			return;
		}
		choice -= n;
		if (model == MODEL_TSO && memory_buffered(&threads[i]) && choice-- == 0) {
			memory_flush(&threads[i]);
			return;
		}
	}
	abort();
}

/* ---- states ------------------------------------------------------------ */

static uint8_t *copies;        /* of states on the path, one after the other */
static size_t ncopies, copies_room;

static void *room(size_t size)
{
	if (ncopies + size > copies_room) {
		copies_room = (ncopies + size) * 2;
		copies = realloc(copies, copies_room);
		if (!copies)
			abort();
	}
	ncopies += size;
	return copies + ncopies - size;
}

static size_t live(const struct thread *t)
{
	return t->used ? (size_t)(stacks[t - threads] + STACK - (uint8_t *)t->sp) : 0;
}

static void copy_state(void)
{
	size_t size;
	void *at;

	for (int i = 0; i < nregions; i++)
		memcpy(room(regions[i].size), regions[i].at, regions[i].size);
	for (int i = 0; i < THREADS; i++)
		if (threads[i].used)
			memcpy(room(live(&threads[i])), threads[i].sp, live(&threads[i]));
	at = memory_stores(&size);
	memcpy(room(size), at, size);
}

static void put_back(size_t from)
{
	uint8_t *at = copies + from;
	size_t size;
	void *to;

	for (int i = 0; i < nregions; at += regions[i++].size)
		memcpy(regions[i].at, at, regions[i].size);
	for (int i = 0; i < THREADS; i++) {
		if (!threads[i].used)
			continue;
		memcpy(threads[i].sp, at, live(&threads[i]));
		memset((uint8_t *)threads[i].sp - UNUSED, 0, UNUSED);
		at += live(&threads[i]);
	}
	to = memory_stores(&size);
	memcpy(to, at, size);
}

static uint64_t fold(uint64_t a, uint64_t b)
{
	unsigned __int128 m = (unsigned __int128)(a ^ 0x9e3779b97f4a7c15u) * (b ^ 0xd6e8feb86659fd93u);

	return (uint64_t)m ^ (uint64_t)(m >> 64);
}

/* Four lanes, since each multiplication would wait for the one before. */
static uint64_t mix(uint64_t h, const void *data, size_t size)
{
	uint64_t lane[4] = { h, h + 1, h + 2, h + 3 }, v[4];
	const uint8_t *p = data;

	for (; size >= sizeof(v); p += sizeof(v), size -= sizeof(v)) {
		memcpy(v, p, sizeof(v));
		for (int i = 0; i < 4; i++)
			lane[i] = fold(lane[i], v[i]);
	}
	memset(v, 0, sizeof(v));
	memcpy(v, p, size);
	for (int i = 0; i < 4; i++)
		lane[i] = fold(lane[i], v[i]);
	return fold(fold(lane[0], lane[1]), fold(lane[2], lane[3]));
}

static uint64_t hash_state(void)
{
	uint64_t h = 1;
	size_t size;
	void *at;

	for (int i = 0; i < nregions; i++)
		h = mix(h, regions[i].at, regions[i].size);
	for (int i = 0; i < THREADS; i++)
		if (threads[i].used)
			h = mix(h, threads[i].sp, live(&threads[i]));
	at = memory_stores(&size);
	h = mix(h, at, size);
	return h ? h : 1;
}

static uint64_t *seen;
static uint64_t seen_room, nseen;

static bool seen_before(uint64_t h)
{
	uint64_t i, old_room = seen_room, *old = seen;

	if (nseen * 3 >= seen_room * 2) {
		seen_room = seen_room ? seen_room * 2 : 1 << 16;
		seen = calloc(seen_room, sizeof(*seen));
		if (!seen)
			abort();
		nseen = 0;
		for (i = 0; i < old_room; i++)
			if (old[i])
				seen_before(old[i]);
		free(old);
	}
	for (i = h & (seen_room - 1); seen[i]; i = (i + 1) & (seen_room - 1))
		if (seen[i] == h)
			return true;
	seen[i] = h;
	nseen++;
	return false;
}

/* ---- the search -------------------------------------------------------- */

struct frame {
	size_t copy;
	uint16_t choices, next;
};

static void explain(const uint16_t *path, unsigned length)
{
	printf("violation: %s\nreplay:", why);
	for (unsigned i = 0; i < length; i++)
		printf("%s%u", i ? "," : " ", path[i]);
	printf("\n");
}

static bool rest(unsigned choices)
{
	if (!choices)
		at_rest();
	return !choices;
}

static struct found exhaustive(uint64_t limit)
{
	struct found found = { 0 };
	struct frame *frames = NULL;
	uint16_t *path = NULL;
	unsigned depth = 0, frames_room = 0;
	bool fresh = true; /* the state of the last frame stands */

	seen_before(hash_state());
	found.states = 1;
	for (;;) {
		unsigned n = fresh ? count_choices() : 0;

		if (fresh && !rest(n)) {
			if (depth == frames_room) {
				frames_room = frames_room ? frames_room * 2 : 1024;
				frames = realloc(frames, frames_room * sizeof(*frames));
				path = realloc(path, frames_room * sizeof(*path));
				if (!frames || !path)
					abort();
			}
			frames[depth] = (struct frame){ .copy = ncopies, .choices = (uint16_t)n };
			if (n > 1)
				copy_state();
			depth++;
			if (depth > found.depth)
				found.depth = depth;
		} else if (fresh) {
			found.ends++;
		}
		if (violated) {
			explain(path, depth);
			break;
		}
		while (depth && frames[depth - 1].next == frames[depth - 1].choices) {
			ncopies = frames[--depth].copy;
			fresh = false;
		}
		if (!depth)
			break;
		if (!fresh || frames[depth - 1].next) {
			put_back(frames[depth - 1].copy);
		}
		path[depth - 1] = frames[depth - 1].next++;
		choose(path[depth - 1]);
		found.steps++;
		if (violated) {
			explain(path, depth);
			break;
		}
		fresh = !seen_before(hash_state());
		found.states += fresh;
		if (limit && found.states >= limit) {
			found.limited = true;
			break;
		}
	}
	found.violated = violated;
	free(frames);
	free(path);
	return found;
}

static uint64_t random_next(uint64_t *seed)
{
	uint64_t z = *seed += 0x9e3779b97f4a7c15u;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
	return z ^ (z >> 31);
}

/* Random executions to their end. A thread goes on for a while more often than
 * not: most of what goes wrong takes few changes of thread, in the right places. */
static struct found walk(uint64_t walks, uint64_t seed)
{
	enum { LENGTH = 4096 };
	static uint16_t path[LENGTH];
	struct found found = { 0 };
	unsigned n, length;

	copy_state();
	for (; walks && !violated; walks--) {
		put_back(0);
		for (length = 0; length < LENGTH && !violated; length++) {
			n = count_choices();
			if (rest(n)) {
				found.ends++;
				break;
			}
			path[length] = (uint16_t)(random_next(&seed) % n);
			choose(path[length]);
			found.steps++;
		}
		if (length > found.depth)
			found.depth = length;
		if (violated)
			explain(path, length);
	}
	found.violated = violated;
	return found;
}

static struct found follow(const char *choices)
{
	struct found found = { 0 };
	char *end;

	tracing = true;
	for (; *choices && !violated; choices = *end ? end + 1 : end) {
		unsigned long choice = strtoul(choices, &end, 10);

		if (end == choices || choice >= count_choices()) {
			printf("no such choice: %s\n", choices);
			exit(2);
		}
		choose((unsigned)choice);
		found.steps++;
	}
	if (!violated && rest(count_choices()))
		found.ends++;
	if (violated)
		printf("violation: %s\n", why);
	found.violated = violated;
	return found;
}

struct found search(const struct limits *limits)
{
	bound = limits->preemptions;
	state_region(&order, sizeof(order));
	start_threads();
	for (int i = 0; i < THREADS && threads[i].used; i++) {
		state_region(&threads[i], sizeof(threads[i]));
		state_region(resumes[i], offsetof(struct __jmp_buf_tag, __saved_mask));
	}
	memory_collect();
	if (violated)
		explain(NULL, 0);
	else if (limits->replay)
		return follow(limits->replay);
	else if (limits->walks)
		return walk(limits->walks, limits->seed);
	else
		return exhaustive(limits->states);
	return (struct found){ .violated = true };
}

/* ---- what hook.h sends here -------------------------------------------- */

static uint32_t location(const void *at, const char *function)
{
	uint32_t loc = memory_find(at);

	if (loc == LOCS)
		violation("%s: %s uses an atomic variable that explore.c does not name", thread_name(self), function);
	else if (memory_ordinary(loc))
		violation("%s: %s uses %s as an atomic variable", thread_name(self), function, memory_name(loc));
	return loc;
}

/* A number on which nothing is decided (stat_store and its like in atomic.h) is
 * not kept, unless explore.c names it. */
static bool is_stat(const void *at, const char *function)
{
	uint32_t loc = memory_find(at);

	return (strncmp(function, "stat_", 5) == 0 || strcmp(function, "tally") == 0) && (loc == LOCS || memory_ordinary(loc));
}

static uint64_t access_loc(enum kind kind, const void *at, uint64_t value, uint64_t expected, int order, int fail_order,
			   const char *function)
{
	struct op op;

	if (is_stat(at, function))
		return 0;
	memset(&op, 0, sizeof(op));
	op.kind = kind;
	op.loc = location(at, function);
	op.order = order;
	op.fail_order = fail_order;
	op.value = value;
	op.expected = expected;
	op.name = function;
	return op.loc == LOCS || memory_ordinary(op.loc) ? 0 : perform(&op);
}

uint64_t ex_load(const void *at, int order, const char *function)
{
	uint32_t loc = memory_find(at);

	order = flaw_of(function, loc, order).order;
	if (loc != LOCS && unnoticed(function, loc, order))
		return memory_own(self, loc);
	return access_loc(LOAD, at, 0, 0, order, 0, function);
}

void ex_store(void *at, uint64_t value, int order, const char *function)
{
	order = flaw_of(function, memory_find(at), order).order;
	access_loc(STORE, at, value, 0, order, 0, function);
}

uint64_t ex_add(void *at, uint64_t value, int order, const char *function)
{
	struct weak_op f = flaw_of(function, memory_find(at), order);
	uint64_t old;

	if (!f.split)
		return access_loc(ADD, at, value, 0, f.order, 0, function) + value;
	old = access_loc(LOAD, at, 0, 0, __ATOMIC_RELAXED, 0, function);
	access_loc(STORE, at, old + value, 0, f.order, 0, function);
	return old + value;
}

uint64_t ex_swap(void *at, uint64_t value, int order, const char *function)
{
	struct weak_op f = flaw_of(function, memory_find(at), order);
	uint64_t old;

	if (!f.split)
		return access_loc(SWAP, at, value, 0, f.order, 0, function);
	old = access_loc(LOAD, at, 0, 0, __ATOMIC_RELAXED, 0, function);
	access_loc(STORE, at, value, 0, f.order, 0, function);
	return old;
}

bool ex_cas(void *at, uint64_t *expected, uint64_t value, int order, int fail_order, const char *function)
{
	struct weak_op f = flaw_of(function, memory_find(at), order);
	uint64_t old;

	if (f.split)
		old = access_loc(LOAD, at, 0, 0, __ATOMIC_RELAXED, 0, function);
	else
		old = access_loc(CAS, at, value, *expected, f.order, f.order == order ? fail_order : __ATOMIC_RELAXED, function);
	if (old != *expected) {
		*expected = old;
		return false;
	}
	if (f.split)
		access_loc(STORE, at, value, 0, f.order, 0, function);
	return true;
}

static void block(enum kind kind, void *at, uint64_t value, const char *name)
{
	struct op op;

	memset(&op, 0, sizeof(op));
	op.kind = kind;
	op.loc = at ? location(at, name) : LOCS;
	op.value = value;
	op.name = name;
	perform(&op);
}

void ex_relax(void)
{
	block(RELAX, NULL, 0, "cpu_relax");
}

long ex_futex(void *at, int operation, uint32_t value, const struct timespec *timeout)
{
	if (operation != FUTEX_WAIT || timeout)
		violation("%s: this use of a futex is not in the explorer", thread_name(self));
	block(SLEEP, at, value, "futex_wait");
	return 0;
}

int ex_poll(struct pollfd *fds, nfds_t n, const struct timespec *timeout)
{
	self->polls = true;
	for (nfds_t i = 0; i < n; i++)
		fds[i].revents = 0;
	/* The first is stop_fd, the second the connection, the third look_fd. */
	block(POLL, NULL, timeout != NULL, "ppoll");
	if (!self->result)
		return 0;
	fds[1].revents = POLLIN;
	return 1;
}

void ex_wake(void *at)
{
	block(WAKE, at, 0, "futex_wake");
}
