/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the parts of the explorer share. docs/grant-word.md says what it does.
 *
 *   hook.h     stands in front of gate.c, slots.c and thread.c: their atomics and
 *              system calls come here
 *   process.c  these as one process; linked twice
 *   memory.c   the memory models
 *   search.c   threads as coroutines, states, the search
 *   arbiter.c  vgpud's side of the word, as vgpu/node/words.go and turn.go have it
 *   explore.c  what runs: scenarios, the layer above the gate, what must hold
 */
#ifndef VGPU_EXPLORE_H
#define VGPU_EXPLORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../internal.h"

#define PROCESSES 2
#define THREADS   8
#define LOCS      56
#define NOBODY    0xff

enum model { MODEL_SC, MODEL_TSO, MODEL_WEAK };

/* One process: a copy of the real gate.c, slots.c and thread.c. */
struct process {
	struct gate *gate;
	void (*enter)(void);
	void (*leave)(void);
	void (*complete)(void);
	void (*adopt)(struct vgpu_slot *slot);
	void (*end)(void);       /* of the calling thread */
	void *(*thread)(void *); /* the library's own */
};
extern const struct process process_a, process_b;

/* What a thread is about to do. It stops in front of every operation that
 * another thread could notice, and the search decides who goes on. */
enum kind { LOAD, STORE, ADD, SWAP, CAS, SLEEP, WAKE, RELAX, POLL, STEP };

struct thread;

struct op {
	enum kind kind;
	uint32_t loc;
	int order, fail_order;     /* __ATOMIC_*; the second of a CAS that fails */
	uint64_t value, expected;
	const char *name;          /* the function it stands in, for people */
	/* STEP: what is no memory operation. 0 options: it must wait. */
	unsigned (*options)(const struct op *op);
	void (*act)(struct thread *t, unsigned option);
	int arg;
};

struct thread {
	bool used, done, asleep;
	uint8_t process;           /* NOBODY: vgpud's and the device's */
	bool polls;                /* it is a library's thread */
	bool changed;              /* ... and somebody changed something since it last polled */
	bool moved;                /* it spins, and somebody changed what it loaded last */
	uint32_t last;
	/* What it told the layer above: for the invariants, not for the gate. */
	bool passed;               /* the gate let it in, it has not submitted yet */
	struct op op;
	uint64_t result;
	uint8_t tls[32];           /* the gate's thread-local variables, of each process */
	void *sp;
};

/* ---- search.c ---------------------------------------------------------- */

extern enum model model;
extern struct thread threads[THREADS];
extern struct thread *self;        /* whose code runs now */
extern bool tracing;

void thread_new(uint8_t process, void (*fn)(int arg), int arg, const char *fmt, ...) __attribute__((format(printf, 4, 5)));
const char *thread_name(const struct thread *t);
/* What else belongs to a state. */
void state_region(void *at, size_t size);
/* Stops self in front of op; the result once it was done. */
uint64_t perform(const struct op *op);
void step(const char *name, unsigned (*options)(const struct op *), void (*act)(struct thread *, unsigned), int arg);
/* The execution broke a rule. */
void violation(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void trace(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Somebody changed loc (LOCS: something else) for all to see. */
void news(const struct thread *by, uint32_t loc);

struct limits {
	uint64_t states;           /* of the exhaustive search, 0: no limit */
	unsigned preemptions;      /* of an execution: threads stopped that could have gone on; 0: no limit */
	uint64_t walks, seed;      /* random walks, instead of it */
	const char *replay;        /* choices to follow, instead of both */
};

struct found {
	uint64_t states, steps, ends; /* ends: executions that came to rest */
	unsigned depth;
	bool limited, violated;
};

struct found search(const struct limits *limits);

/* ---- memory.c ---------------------------------------------------------- */

void memory_init(void);
/* An atomic variable, or with memory_plain an ordinary one, that only threads
 * of the owner use; NOBODY: of all. After the threads. */
uint32_t memory_loc(const char *name, void *at, size_t size, uint8_t owner);
void memory_plain(const char *name, void *at, uint8_t owner);
const char *memory_name(uint32_t loc);
bool memory_ordinary(uint32_t loc);
uint32_t memory_find(const void *at); /* LOCS: none */

unsigned memory_options(const struct thread *t, const struct op *op);
uint64_t memory_do(struct thread *t, const struct op *op, unsigned option);
uint64_t memory_now(uint32_t loc);
/* As t itself would read it if it was the only one to write. */
uint64_t memory_own(const struct thread *t, uint32_t loc);

bool memory_buffered(const struct thread *t);
void memory_flush(struct thread *t); /* the oldest store in its buffer */
void memory_drain(struct thread *t);
bool memory_stale(const struct thread *t);
void memory_refresh(struct thread *t);
void memory_collect(void);
/* What it holds in weak beyond its state_region. */
void *memory_stores(size_t *size);

/* A message that goes by the kernel: 0..PROCESSES-1 are nudges, the last is the
 * bell of vgpud. */
#define BELL PROCESSES
void memory_send(struct thread *t, unsigned message);
void memory_receive(struct thread *t, unsigned message);

/* ---- explore.c --------------------------------------------------------- */

/* A write of old -> new to loc is now visible to all. */
void watch(const struct thread *by, uint32_t loc, uint64_t old, uint64_t new);
/* Called when no thread can go on. */
void at_rest(void);
/* The order of an operation, unless the flaw that is planted weakens it. */
struct weak_op { int order; bool split; };
struct weak_op flaw_of(const char *function, uint32_t loc, int order);
bool unnoticed(const char *function, uint32_t loc, int order);

struct bell { bool bell, nudge[PROCESSES]; };
extern struct bell bells;

/* ---- arbiter.c --------------------------------------------------------- */

enum phase { FREE, HOLDING, DRAINING };
enum other { ABSENT, WAITING, GRANTED };

struct arbiter {
	uint8_t processes;
	uint8_t phase, other;
	bool pending, taking;
	uint8_t others, quanta, resumes;  /* how often each may still happen */
	uint8_t flaw;
};
extern struct arbiter arbiter;
enum arbiter_flaw { NO_FLAW, READ_BEFORE_WANTED, NO_WAKE, RESUME_SAME_EPOCH, BELIEVE_BELL, NO_NUDGE };

void arbiter_main(int unused);
/* The other vGPU gets the GPU: nothing of ours may be left. */
void other_granted(void);
/* Our turn ended: what it did is read from the page. */
void turn_ended(void);

extern struct vgpu_page pages[PROCESSES];

/* ---- what hook.h and arbiter.c call ------------------------------------ */

uint64_t ex_load(const void *at, int order, const char *function);
void ex_store(void *at, uint64_t value, int order, const char *function);
/* As __atomic_add_fetch: the sum. */
uint64_t ex_add(void *at, uint64_t value, int order, const char *function);
uint64_t ex_swap(void *at, uint64_t value, int order, const char *function);
bool ex_cas(void *at, uint64_t *expected, uint64_t value, int order, int fail_order, const char *function);
void ex_wake(void *at);
void *ex_map(void);
void ex_unmap(void *chunk);

#endif
