/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The simulated driver in one process.
 *
 * One mutex (sim.lock) guards everything here. One engine thread for each GPU
 * that is used runs work (engine.c), one thread runs host functions (host.c).
 * A function whose name ends in _locked wants the mutex held; some of them say
 * that they let it go for a while.
 */
#ifndef SIMGPU_SIM_H
#define SIMGPU_SIM_H

#define VGPU_CUDA_ABI_EXPORTS
#include "cuda_abi.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "../machine/machine.h"

#define EXPORT __attribute__((visibility("default")))
#define QUEUE_LIMIT 1024 /* submissions that a stream holds; more wait in the call */
#define ENDLESS UINT64_MAX
#define MAX_STACK 32 /* contexts pushed by one thread */

struct stream;
struct context;
struct event;
struct graph;
struct exec;
struct shared_event;
struct program;
struct graph_memory;
struct green;

/* Every handle begins with its kind; handles.c knows which are alive. */
enum kind {
	KIND_CONTEXT = 1, KIND_STREAM, KIND_EVENT, KIND_MODULE, KIND_FUNCTION, KIND_GRAPH, KIND_NODE,
	KIND_EXEC, KIND_POOL, KIND_LIBRARY, KIND_KERNEL, KIND_LINK, KIND_PHYSICAL,
	KIND_ARRAY, KIND_MIPMAP, KIND_TEXTURE, KIND_SURFACE, KIND_USER_OBJECT, KIND_GREEN, KIND_RESOURCES,
};

struct handle {
	enum kind kind;
};

/* What one step of an operation does. */
enum step_kind {
	STEP_NOTHING, STEP_KERNEL, STEP_COPY, STEP_SET, STEP_HOST, STEP_RECORD, STEP_FREE, STEP_WRITE, STEP_WAIT_VALUE,
	STEP_WAIT_SHARED, /* for an event that other processes record too */
	/* in graphs only */
	STEP_WAIT_EVENT, STEP_GRAPH_ALLOC, STEP_GRAPH_FREE,
};

struct copy {
	uint64_t dst, src; /* addresses as seen by work: device, pinned or plain host memory */
	size_t dst_pitch, src_pitch, width, height;
	size_t dst_slice, src_slice, depth; /* bytes from one plane to the next; planes, 0 means 1 */
	void *staged; /* src was pageable: our own copy of it, freed with the step */
};

struct set {
	uint64_t dst;
	size_t pitch, width, height; /* width in elements */
	uint32_t value, size;        /* bytes of an element: 1, 2, 4 */
};

struct launch {
	const struct body *body;
	struct param *layout;  /* owned by the step; params lie behind it in one block */
	unsigned char *params;
	uint32_t n_params, bytes;
	uint32_t grid[3], block[3], shared;
	struct function *function; /* only to be told: it may be gone */
};

struct host {
	void (*fn)(void *);
	CUstreamCallback callback; /* one of the two */
	CUstream handle;
	void *data;
};

struct step {
	enum step_kind kind;
	uint64_t duration_ns; /* of GPU time; ENDLESS */
	union {
		struct copy copy;
		struct set set;
		struct launch launch;
		struct host host;
		struct { /* STEP_RECORD, STEP_WAIT_EVENT, STEP_WAIT_SHARED; holds a reference */
			struct event *event;
			bool external; /* a node of its own when captured */
			uint32_t number; /* STEP_WAIT_SHARED: of the record */
		};
		struct graph_memory *memory; /* STEP_GRAPH_ALLOC, STEP_GRAPH_FREE; holds a reference */
		uint64_t address;    /* STEP_FREE */
		struct {
			uint64_t address, value;
			uint32_t size, flags;
		} value;
	};
};

/* A place in a stream: everything up to seq of it. Holds a reference. */
struct point {
	struct stream *stream;
	uint64_t seq;
};

struct op {
	struct op *next;
	struct op *host_next; /* waiting for the host function thread */
	struct stream *stream;
	uint64_t seq;
	uint64_t record;
	enum sim_class class;
	struct step one;
	struct step *steps; /* &one, or some of program */
	uint32_t n_steps, at;
	struct program *program; /* of a graph launch, in one or more operations; holds a reference */
	bool first, last;        /* of the operations of one submission */
	struct point *after;  /* must be done before this one starts */
	uint32_t n_after;
	uint64_t progress_ns; /* of the present step */
	uint64_t began_ns;    /* when the present step did */
	bool begun;           /* its effect is there */
	bool running;
	bool logged_start;
	uint32_t number; /* of the record with which it ends, of an event that is shared */
};

struct stream {
	struct handle h;
	struct context *ctx;
	uint32_t refs;
	uint32_t flags; /* CU_STREAM_NON_BLOCKING */
	int priority;
	uint64_t id;
	bool legacy, per_thread, destroyed;
	bool detached;       /* its green context is gone */
	struct green *green; /* that it was made in, while that is there; or NULL */
	uint64_t thread; /* whose per-thread default stream it is */
	uint64_t submitted, completed;
	struct op *first, *last;
	struct stream *next, **link;           /* of the context */
	struct stream *active_next, *active_prev; /* of the GPU; in the list iff first != NULL */
	struct capture *capture;
	struct node **tail; /* while capturing: what the next node depends on */
	uint32_t n_tail;
};

struct event {
	struct handle h;
	struct context *ctx;
	uint32_t refs;
	uint32_t flags;
	bool destroyed, recorded;
	struct point at; /* the last record */
	struct shared_event *shared; /* an interprocess one; or NULL */
	uint64_t done_ns;
	uint64_t capture_id; /* last recorded inside this capture, which may be over; 0: in none */
	struct node **tail;
	uint32_t n_tail;
};

struct context {
	struct handle h;
	uint32_t refs; /* retains of a primary one; objects */
	uint32_t attached; /* uses beyond its creation */
	uint64_t id;
	uint32_t gpu; /* index in the machine */
	CUdevice device; /* ordinal */
	uint32_t flags;
	bool primary, destroyed;
	CUresult error; /* sticky */
	uint32_t losses; /* of the GPU, when it was made */
	struct stream *streams;
	struct stream *legacy;
	struct stream *gather; /* hidden: takes the events of the whole context; or NULL */
	struct module *modules;
	size_t limits[16];
	struct context *next; /* destroyed before it */
};

struct gpu {
	bool started, has_turn;
	bool polling; /* some stream waits for a value in memory */
	pthread_t thread;
	pthread_cond_t kick;
	struct stream *active_first, *active_last;
	const struct op *resume; /* the operation that only a slice's end interrupted, at resume_ns */
	uint64_t resume_ns;
	uint64_t in_flight; /* work, not order */
	struct context *primary;
	uint32_t primary_flags;
	uint32_t primary_retains;
};

struct sim {
	pthread_mutex_t lock;
	pthread_cond_t done; /* something completed */
	_Atomic bool ready;  /* cuInit succeeded, and not in a fork's child */
	CUresult init_result;
	struct machine mc;
	int n_devices; /* visible ones */
	uint32_t device[SIM_MAX_GPUS]; /* ordinal -> index in the machine */
	struct gpu gpu[SIM_MAX_GPUS];
	struct context *destroyed; /* contexts */
	uint64_t next_id;
	struct capture *captures;
	bool debug;
};

extern struct sim sim;

struct thread_state {
	struct context *stack[MAX_STACK];
	uint32_t depth;
	CUstreamCaptureMode capture_mode;
	bool in_host_function;
	bool engine; /* of the GPU of that index in the machine */
	uint32_t gpu;
	uint64_t id; /* of this thread; 0: none yet */
};

extern _Thread_local struct thread_state self;
uint64_t thread_id(void);

/* entry.c: how each call begins */
CUresult enter(void); /* initialised, and allowed here? */
/* enter, lock, current context without a sticky error. On failure unlocked. */
CUresult enter_context(struct context **ctx);
static inline void lock(void) { pthread_mutex_lock(&sim.lock); }
static inline void unlock(void) { pthread_mutex_unlock(&sim.lock); }
static inline CUresult leave(CUresult r)
{
	unlock();
	return r;
}
/* A call that was made slow takes its time here. Lets the mutex go meanwhile. */
void slow_locked(const char *name, uint32_t gpu);
void debug(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Logs a call of class setup that began at from_ns and is over now. May let the mutex go. */
void log_setup(const char *name, const char *detail, const struct context *ctx, uint64_t from_ns);

/* handles.c */
void handle_add_locked(void *h, enum kind kind);
void handle_remove_locked(void *h);
/* The object, or NULL if it is not one of this kind that lives. */
void *handle_get_locked(const void *h, enum kind kind);

/* context.c */
bool device_ok(CUdevice dev);
CUresult context_create_locked(struct context **out, CUdevice dev, unsigned flags);
struct context *context_get_locked(CUcontext h);
/* Lets the mutex go. */
void context_destroy_locked(struct context *ctx);
/* Waits, lets the mutex go. */
CUresult context_sync_locked(struct context *ctx);
void context_fail_locked(struct context *ctx, CUresult error);
void context_look_locked(struct context *ctx);

/* primary.c */
CUresult primary_retain_locked(CUdevice dev, struct context **out);
void primary_release_locked(struct context *ctx); /* may let the mutex go */

/* stream.c */
struct stream *stream_new_locked(struct context *ctx, unsigned flags, int priority);
void stream_put_locked(struct stream *s);
static inline struct stream *stream_ref(struct stream *s)
{
	s->refs++;
	return s;
}
/* The stream of a handle in a call of this default-stream flavour. */
CUresult stream_get_locked(struct context *ctx, CUstream h, bool per_thread, struct stream **out);
bool stream_idle_locked(const struct stream *s); /* with the legacy stream's rule */
CUresult stream_sync_locked(struct stream *s);    /* lets the mutex go */
bool point_done(const struct point *p);
void wait_point_locked(struct stream *s, uint64_t seq); /* lets the mutex go */

/* queue.c: submitting */
struct submit {
	const char *name, *detail;
	enum sim_class class;
	struct stream *stream;
	const struct event *event; /* STEP_NOTHING that waits for it, or NULL */
	bool external;             /* the wait is a node of its own when captured */
	struct exec *exec;         /* a graph launch, or NULL */
	bool behind_all;           /* after everything in the context, or in green */
	const struct green *green; /* or NULL */
	struct step step;          /* its memory goes over to the operation, also on failure */
};
/*
 * Puts it into the stream, or into the stream's capture. May let the mutex go
 * (full queue). seq, if not NULL, gets its place: 0 if it was captured.
 */
CUresult submit_locked(const struct submit *s, uint64_t *seq);
/* Releases what it brought; returns r. */
CUresult submit_refuse_locked(const struct submit *s, CUresult r);
void step_release_locked(struct step *st);
/* Runs everything that needs no GPU time: events, waits, host functions, frees. */
void advance_locked(void);
void stream_rotate_locked(struct stream *s);
void step_done_locked(struct op *op);
bool op_ready_locked(const struct op *op);
bool needs_gpu(const struct step *st);

/* engine.c, host.c */
/* A thread that takes no signals. */
CUresult thread_start(pthread_t *t, void *(*run)(void *), void *arg);
CUresult engine_start_locked(uint32_t gpu);
/* The host function thread only. */
CUresult host_start_locked(void);
void host_run_locked(struct op *op);
/* Calls a function of the program's there, in no stream. */
void host_call_locked(CUhostFn fn, void *data);
void *host_thread(void *arg);

/* step.c: the effect of a step, without the mutex */
CUresult step_run(struct context *ctx, struct step *st);
bool step_over(const struct step *st); /* an ENDLESS one */
void step_ended(const struct step *st, uint64_t began_ns, uint64_t ended_ns);

/* context_event.c: what is submitted from now on to streams of the context, or of green, waits */
CUresult context_wait_locked(struct context *ctx, const struct green *green, const struct event *e, const char *name);
CUresult context_record_locked(struct context *ctx, const struct green *green, struct event *e, const char *name);

/* event.c */
/* Takes shared over, on success; NULL: no memory. */
struct event *event_new_locked(struct context *ctx, unsigned flags, struct shared_event *shared);
void event_put_locked(struct event *e);
void event_record_done_locked(struct event *e, struct op *op);

/* memory.c */
enum memory_kind {
	MEMORY_DEVICE, MEMORY_HOST, MEMORY_REGISTERED, MEMORY_MANAGED,
	MEMORY_POOL,     /* part of a pool's */
	MEMORY_MAPPED,   /* physical memory that the program mapped itself */
	MEMORY_IMPORTED, /* of another process */
};
#define MEMORY_LOW 0x80000000u /* flag of MEMORY_DEVICE: the address fits into 32 bits */
struct allocation {
	uint64_t base; /* as the program sees it */
	size_t size;
	enum memory_kind kind;
	struct context *ctx; /* or NULL; no reference: a context frees its memory when it goes */
	uint32_t gpu;
	CUdevice device;
	unsigned flags;
	uint64_t id;
	bool sync_memops;
	struct graph_memory *graph; /* a graph's, which has the address and the charge; or NULL */
	struct pool *pool; /* POOL; IMPORTED by way of a pool */
	struct physical *physical; /* MAPPED */
	unsigned char access[SIM_MAX_GPUS], host_access; /* MAPPED: CUmemAccess_flags by ordinal, and of the program */
	unsigned opens; /* IMPORTED: how often it is open */
	uint64_t source; /* IMPORTED: id of what it is there << 32 | the process */
};
/* Adds what has an address and is charged already. */
bool memory_place_locked(const struct allocation *a);
CUresult memory_alloc_locked(struct context *ctx, size_t size, enum memory_kind kind, unsigned flags, uint64_t *address);
CUresult memory_free_locked(uint64_t address);
struct allocation *memory_find_locked(uint64_t address);
void memory_free_context_locked(struct context *ctx);
/* Where n bytes at the address really are, or NULL if work may not touch them. */
void *memory_at(uint64_t address, size_t n, bool host_too);
void *memory_at_locked(uint64_t address, size_t n);
/* The same for who writes there. */
void *memory_to(uint64_t address, size_t n, bool host_too);
void *memory_to_locked(uint64_t address, size_t n);
bool memory_is_device(uint64_t address);
bool memory_is_pageable_locked(uint64_t address);
CUresult memory_register_locked(struct context *ctx, void *p, size_t size, unsigned flags);
CUresult memory_unregister_locked(void *p);

/* pool_memory.c: a point at which the host has waited: pools give memory back */
void pool_settle_locked(void);

/* arena.c: device addresses and what is behind them */
struct arena;
bool arena_alloc_locked(uint32_t gpu, size_t size, uint64_t *address);
void arena_free_locked(uint32_t gpu, uint64_t address, size_t size);
void *arena_host(uint64_t address); /* NULL: no device address */

/* module.c, ptx.c, kernels.c */
struct param {
	uint32_t offset, size;
};
struct body {
	const char *name;
	uint32_t n_params;
	uint32_t size[8];
	/* Computes; sets the GPU time it takes. Runs without the mutex. */
	CUresult (*run)(const struct launch *l, uint64_t *duration_ns);
	/* Whether an ENDLESS one is over now; NULL: never. Runs without the mutex. */
	bool (*over)(const struct launch *l);
	/* What it does at its end; NULL: nothing. Runs without the mutex. */
	void (*ended)(const struct launch *l, uint64_t began_ns, uint64_t ended_ns);
};
extern const struct body bodies[];
const struct body *body_find(const char *name);

struct entry {
	char *name;
	struct param *params;
	uint32_t n_params, bytes;
	struct entry *next;
};
struct global {
	char *name;
	size_t size;
	struct global *next;
};
struct ptx {
	struct entry *entries;
	struct global *globals;
	char why[256]; /* when it does not parse */
};
bool ptx_parse(const char *text, struct ptx *out);
void ptx_free(struct ptx *p);

struct function {
	struct handle h;
	struct module *module;
	struct entry *entry;
	const struct body *body;
	struct prepared *prepared; /* for a launch as before CUDA 4, or NULL */
	struct function *next;
};
struct module {
	struct handle h;
	struct context *ctx;
	struct ptx ptx;
	struct function *functions;
	uint64_t *global_address; /* one each of ptx.globals */
	uint64_t charged;
	struct module *next;      /* of the context */
};
CUresult module_load_locked(struct context *ctx, const void *image, struct module **out, char *why, size_t why_size);
void module_unload_locked(struct module *m);
struct function *module_function_locked(struct module *m, const char *name);
struct function *function_of_locked(struct context *ctx, CUfunction f);
void module_free_context_locked(struct context *ctx);
/* A step that launches f; parameters are copied. */
CUresult launch_step_locked(struct context *ctx, const CUDA_KERNEL_NODE_PARAMS *p, struct step *out, const char **name);

/* capture.c */
struct capture {
	struct capture *next;
	struct context *ctx;
	struct stream *origin;
	struct graph *graph;
	CUstreamCaptureMode mode;
	uint64_t thread;
	uint64_t id;
	bool invalid;
	bool borrowed; /* cuStreamBeginCaptureToGraph: the graph is the caller's */
};
/* A call that may not be made now: 0, or the error, having spoilt captures. */
CUresult capture_unsafe_locked(void);
CUresult capture_forbid_locked(struct stream *s); /* a call on a capturing stream that can not be captured */
CUresult capture_forbid_context_locked(struct context *ctx);
CUresult capture_legacy_locked(struct context *ctx); /* use of the legacy stream */
CUresult capture_add_locked(const struct submit *s);
/* A stream that waits for an event inside a capture becomes part of it. */
CUresult capture_join_locked(struct stream *s, const struct event *e);
bool capture_event_locked(const struct event *e); /* recorded in a capture that still runs */
void capture_drop_stream_locked(struct stream *s);

/* graph.c; the rest of graphs is in graph.h */
void graph_free_locked(struct graph *g);

/* copy.c */
uint64_t copy_ns(bool device_to_device, size_t bytes);

#endif
