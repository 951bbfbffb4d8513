/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the take-over of libcuda share.
 *
 * Each hooked call runs as: vgpu_managed? -> before -> the real function ->
 * after. Between before and after the thread is "nested": whatever the real
 * driver calls of our exports on this thread goes straight back to it.
 */
#ifndef VGPU_DRIVER_H
#define VGPU_DRIVER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#pragma GCC visibility push(default)
#define VGPU_CUDA_ABI_EXPORTS
#include "cuda_abi.h"
#pragma GCC visibility pop

#include "gen/names.h"
#include "../gate/client.h"
#include "../gate/gate.h"
#include "../gate/tls.h"
#include "../gate/wire.h"

/* The real driver, where no search path leads. A build for another C library has
 * a driver of its own. */
#ifndef VGPU_REAL_PATH
#define VGPU_REAL_PATH VGPU_DIR "/libcuda.so"
#endif

/* What stands around each submission: inlined into some hundred hooks, since a
 * call there costs as much as half a locked operation. */
#define VGPU_HOT         static inline __attribute__((always_inline))

/* ---- the real driver (real.c) ------------------------------------------ */

struct vgpu_name_row {
	const char *name;
	unsigned flags;            /* VGPU_NAME_* */
	int hook;                  /* enum vgpu_hook, or -1 */
	void *entry;               /* what we export under the name */
	void *found;               /* a hook's twin, see procaddr.c */
};
#define VGPU_NAME_PER_THREAD 1u    /* a NULL stream is the per-thread default stream */

extern const struct vgpu_name_row vgpu_names[VGPU_NAMES];

/* Real addresses, or the lazy part of a trampoline. Defined by the assembler;
 * written by vgpu_resolve, always with the same value. */
extern void *vgpu_real[VGPU_NAMES];
/* Addresses that cuGetProcAddress returned and no exported name has. */
extern _Atomic(void *) vgpu_found[VGPU_HOOKS];

/* Finds the real address of a name and stores it; never NULL. Thread-safe, but
 * it takes the dynamic loader's lock: only for calls before cuInit. */
void *vgpu_resolve(unsigned name);
/* Resolves every name. After it no call of ours asks the loader for anything. */
void vgpu_resolve_all(void);
/* As vgpu_resolve, but false for a name that the real driver lacks. */
bool vgpu_has(unsigned name, void **address);
bool vgpu_in_ours(const void *address);

/* Where the real driver lies; 0 and 0 until it is known. */
extern _Atomic uintptr_t vgpu_real_from, vgpu_real_to;

VGPU_HOT bool vgpu_in_real(const void *address)
{
	uintptr_t a = (uintptr_t)address;

	return a >= atomic_load_explicit(&vgpu_real_from, memory_order_relaxed) &&
	       a < atomic_load_explicit(&vgpu_real_to, memory_order_relaxed);
}

/* Relaxed: both values lead to the same function. */
#define VGPU_REAL(name)  ((__typeof__(&name))__atomic_load_n(&vgpu_real[VGPU_NAME_##name], __ATOMIC_RELAXED))
/* Acquire: pairs with the release store in procaddr.c. */
#define VGPU_FOUND(name) ((__typeof__(&name))atomic_load_explicit(&vgpu_found[VGPU_HOOK_##name], memory_order_acquire))
#define VGPU_CALLER      __builtin_return_address(0)

/* ---- the process (init.c) ---------------------------------------------- */

/* One block of thread-local state: the fast path reads it. */
struct vgpu_thread {
	unsigned nested;           /* inside a real call, or one of our own */
	uint64_t number;           /* from 1; 0: not yet given */
	/* The record found last, with its key and version then (streams.c). */
	struct vgpu_stream *last;
	uint32_t last_version;
	CUstream last_handle;
	CUcontext last_context;
	bool held;                 /* it waits for room on a stream (window.c) */
};
extern VGPU_TLS struct vgpu_thread vgpu_thread;

/* Does this call come from the application, and is there a gate? */
VGPU_HOT bool vgpu_managed(const void *caller)
{
	return atomic_load_explicit(&vgpu_active, memory_order_relaxed) && vgpu_thread.nested == 0 && !vgpu_in_real(caller);
}

uint64_t vgpu_thread_number(void);

CUresult vgpu_init(__typeof__(&cuInit) real, const void *caller, unsigned int flags);
/* visible.c: the value of CUDA_VISIBLE_DEVICES that shows, of the n bound GPUs,
 * those that own (the container's value, or NULL) selects. */
void vgpu_visible(const char *own, const uint8_t (*uuid)[16], int n, char *out, size_t size);

/* ---- the environment while the real cuInit runs (environment.c) ----------- */

struct vgpu_environment {
	char **before;
	struct vgpu_environment *next;
	char *array[];             /* and what it adds behind it */
};
/* The container's own CUDA_VISIBLE_DEVICES, or NULL. */
const char *vgpu_environment_own(void);
/* Shows another value to all threads; NULL without memory. Under a lock of the
 * caller: one at a time. */
struct vgpu_environment *vgpu_environment_show(const char *value);
/* Shows own again, which stands in the environment of before. */
void vgpu_environment_restore(struct vgpu_environment *e, const char *own);

/* ---- streams and what is in flight on them (streams.c) ------------------ */

/* What a NULL stream handle means for a name. */
enum vgpu_default { VGPU_LEGACY, VGPU_PER_THREAD };

enum vgpu_stream_state {
	VGPU_STREAM_FREE,
	VGPU_STREAM_LIVE,
	VGPU_STREAM_TAKEN,         /* by a call in progress that ends its stream or context */
	VGPU_STREAM_ORPHAN,        /* its stream is gone; work of it may be in flight */
};

struct vgpu_stream_key {
	CUstream handle;           /* an explicit one, CU_STREAM_LEGACY or CU_STREAM_PER_THREAD */
	CUcontext context;         /* of a default stream; NULL for an explicit one */
	uint64_t thread;           /* of a per-thread stream; else 0 */
};

/* An event of ours behind all of a stream's work up to a number (window.c). */
struct vgpu_window_mark {
	CUevent event;             /* NULL: not made yet */
	uint64_t number;
	bool tight;                /* recorded while the mark before was not over */
};
#define VGPU_WINDOW_MARKS 8

/* The bound on what is in flight on one stream. */
struct vgpu_window {
	atomic_bool taken;         /* a try-lock; guards all but these three */
	atomic_bool full;          /* as much is in flight as may be: who submits waits first */
	_Atomic uint64_t limit;    /* that much, as of the last look; relaxed */
	uint32_t use;              /* of the record, to which the rest belongs */
	/* A ring: n marks that are not known to be over, from first on; the place
	 * before first keeps the one that was over last, if there is one. */
	unsigned first, n;
	bool before;
	unsigned stalls;           /* how often the allowance was doubled */
	uint64_t unit_ns;          /* what a piece of work takes; 0: not known */
	uint64_t last_ns, least_ns; /* what the last one took, and the shorter of the last two */
	bool alone;                /* a piece was to be alone, as of the last look */
	unsigned together;         /* so many are not to be, as the GPU ran dry */
	uint64_t completed;        /* as seen last */
	uint64_t moved_ns;         /* when it was seen to rise, or the allowance doubled */
	struct vgpu_window_mark mark[VGPU_WINDOW_MARKS];
};

/*
 * A stream that work was submitted to. Records are never freed, but used again;
 * the counters go on then, so that a number remembered for the former stream
 * proves nothing about the next.
 *
 * Work submitted so far is counted in two parts, so that the usual case, one
 * thread that submits to a stream, needs no locked operation. Both only rise.
 * Whoever reads them one after the other may miss what is submitted meanwhile,
 * never count what was not. Two such sums are equal either because the parts
 * are, or while threads are inside the gate; what decides (gate.h) reads them
 * again when none is.
 */
struct vgpu_stream {
	/* By the owner: the thread that used the record first. It alone writes
	 * it, for ever, with plain loads and stores. */
	_Alignas(64) _Atomic uint64_t own;
	uint64_t owner;            /* its number: constant once the record was linked */
	_Atomic uint64_t own_mark; /* at this number of its own the window is looked at */

	/* The key. version is odd while it changes. */
	_Atomic uint32_t version;
	_Atomic int state;         /* enum vgpu_stream_state */
	_Atomic(CUstream) handle;
	_Atomic(CUcontext) key_context;
	_Atomic uint64_t thread;
	_Atomic(struct vgpu_stream *) next; /* in its bucket */

	/* By all other threads, and on default streams by all. */
	_Alignas(64) _Atomic uint64_t others;
	_Atomic uint64_t others_mark;
	_Atomic(CUcontext) context;
	_Atomic(CUgreenCtx) green; /* of which it is a stream, or NULL */
	/* All work up to this number is complete. */
	_Atomic uint64_t completed;
	/* An event of ours behind all work up to probe_covers. */
	_Atomic uint64_t probe_covers;
	_Atomic(CUevent) probe;
	atomic_bool unprobed;      /* a probe was refused, for want of memory or so */
	atomic_bool capturing;     /* a capture began on it */
	_Atomic uint32_t use;      /* raised for each stream that the record stands for */

	struct vgpu_window window;

	/* While it is taken: the call's own list, and what to put back. */
	bool was_orphan;
	struct vgpu_stream *taken;
	struct vgpu_stream_key was;
	struct vgpu_stream *unused; /* the next that is free; under the table's lock */
};

static inline uint64_t vgpu_stream_submitted(struct vgpu_stream *s)
{
	/* Acquire: what is read after it is not older than the number. */
	return atomic_load_explicit(&s->own, memory_order_acquire) + atomic_load_explicit(&s->others, memory_order_acquire);
}

static inline bool vgpu_stream_busy(struct vgpu_stream *s)
{
	/* Completed first: what it proves was submitted before it was written,
	 * so that each part read now is at least the one that was proven; equal
	 * sums mean equal parts. */
	uint64_t completed = atomic_load_explicit(&s->completed, memory_order_acquire);

	return vgpu_stream_submitted(s) != completed;
}

/* Counts one piece of work, after the driver took it and before the gate is
 * left. The thread is nested: a signal handler counts nothing meanwhile. True if
 * it is time for vgpu_window_mark. */
VGPU_HOT bool vgpu_stream_count(struct vgpu_stream *s)
{
	uint64_t n;

	/* Release: who reads the number sees that the driver took the work. A
	 * thread that read it before a synchronising call proves what it read.
	 * The marks relaxed: one that is read late is looked at a call later. */
	if (s->owner == vgpu_thread.number) {
		n = atomic_load_explicit(&s->own, memory_order_relaxed) + 1;
		atomic_store_explicit(&s->own, n, memory_order_release);
		return n >= atomic_load_explicit(&s->own_mark, memory_order_relaxed);
	}
	n = atomic_fetch_add_explicit(&s->others, 1, memory_order_release) + 1;
	return n >= atomic_load_explicit(&s->others_mark, memory_order_relaxed);
}

/* The record that this thread found last, if it is that of this stream: an
 * explicit one (context NULL), or a default one of the current context. The key
 * of a record never changes without its version; a thread number needs no look,
 * since the memory is the thread's own. */
VGPU_HOT struct vgpu_stream *vgpu_stream_last(CUstream handle, CUcontext context)
{
	struct vgpu_thread *t = &vgpu_thread;
	struct vgpu_stream *s = t->last;

	if (s && t->last_handle == handle && t->last_context == context &&
	    atomic_load_explicit(&s->version, memory_order_acquire) == t->last_version)
		return s;
	return NULL;
}

/* All work up to number is complete. */
void vgpu_stream_done(struct vgpu_stream *s, uint64_t number);

/* A handle as the driver's functions without a flavour take it. */
static inline CUstream vgpu_stream_handle(CUstream stream, enum vgpu_default d)
{
	if (stream == NULL)
		return d == VGPU_PER_THREAD ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
	return stream;
}

/* The record of a stream of this thread's point of view; NULL if it has none.
 * handle is one of vgpu_stream_handle. */
struct vgpu_stream *vgpu_stream_find(CUstream handle);
/* As find, but lock-free: it may miss a record that is there. For what is only
 * lost by that: a proof that came for free. */
struct vgpu_stream *vgpu_stream_find_quick(CUstream handle);
/* As find, and makes the record if there is none; NULL only without memory. */
struct vgpu_stream *vgpu_stream_get(CUstream handle);

/*
 * The end of a stream or context. The records are taken out of the table
 * *before* the driver is asked: it may give the handle to a new stream before
 * the call returns here. Work in flight stays watched. The fence is shared from
 * before the taking until after gone or put_back.
 */
struct vgpu_stream *vgpu_streams_take(CUstream handle);
struct vgpu_stream *vgpu_streams_take_context(CUcontext context);
/* ... of a green context; context is its own one, or NULL. */
struct vgpu_stream *vgpu_streams_take_green(CUgreenCtx green, CUcontext context);
bool vgpu_stream_of_green(struct vgpu_stream *s, CUgreenCtx green);
/* There are green contexts: of each new stream it is asked in which it is. */
void vgpu_streams_ask_green(void);
/* The driver did it; complete: and ended all work with it. */
void vgpu_streams_gone(struct vgpu_stream *taken, bool complete);
/* The driver did not. */
void vgpu_streams_put_back(struct vgpu_stream *taken);

/* Calls visit for each record in use until it returns false. Lock-free. */
void vgpu_streams_each(bool (*visit)(struct vgpu_stream *s, void *arg), void *arg);
/* Puts a complete orphan back; the caller holds the fence exclusively. */
void vgpu_stream_recycle(struct vgpu_stream *s);
/* Pieces of work known to be complete: only rises. A stream's queue of which
 * nothing but its end can be asked counts when all of it is. */
uint64_t vgpu_streams_completed(void *arg);
/* There is work of which no record could be made, for ever. */
bool vgpu_streams_lost(void);
void vgpu_streams_thread_key(void);

/* ---- completion (complete.c) -------------------------------------------- */

/* Around driver calls of our own on an application's thread: nested, in a
 * capture mode that disturbs no capture, in the given context (NULL: in any).
 * Other than CUDA_SUCCESS: the context can not be entered; end it all the same. */
struct vgpu_own {
	bool pushed, exchanged;
	CUstreamCaptureMode mode;
};
CUresult vgpu_own_begin(struct vgpu_own *own, CUcontext context);
void vgpu_own_end(struct vgpu_own *own);

/* Does this answer to a question about a stream or event say that its work is over? */
bool vgpu_over(CUresult r);

/* Records the stream's probe behind all that was submitted so far. The stream
 * must not be capturing; the thread is one that may name it. If it fails, the
 * work counts as complete if its context is dead, else as in flight until
 * something else proves it. */
CUresult vgpu_probe(struct vgpu_stream *s, CUstream handle);
/* Before a capture: no legacy stream may be asked while it is open. */
void vgpu_probe_legacy_streams(void);
/* Can one event stand behind all work of a context? */
bool vgpu_context_events(void);
/* Before the first capture: behind the work of streams that only their own threads
 * can name, or nobody. No capture is open. */
void vgpu_probe_unnamed_streams(void);
/* Waits for a stream that is about to go and could not be probed. */
void vgpu_wait_for(struct vgpu_stream *s, CUstream handle);

/* The fence between the library's thread (exclusive, never waits) and calls
 * that take away what it looks at (shared: they do not wait for each other). */
void vgpu_fence_share(void);
/* Exclusive, for an application's thread; nothing long is done within it. */
void vgpu_fence_hold(void);
void vgpu_fence_release(void);

bool vgpu_in_flight(void *arg);
bool vgpu_poll(void *arg);
/* A few finished orphans are put back; for slow paths. */
void vgpu_reap(void);
/* Something was seen complete: ends the turn if nothing else is in flight. */
void vgpu_notify(void);

/* ---- the bound on what is in flight (window.c) --------------------------- */

/* Streams that are full. Relaxed: a hint, windows are looked at under their locks. */
extern _Atomic unsigned vgpu_full;
/* Looks at a stream's window, and puts a mark behind what was submitted if it is
 * time. Inside the gate, nested, on a thread that may name the stream. */
void vgpu_window_mark(struct vgpu_stream *s, CUstream handle);
/* Waits until the stream has room for more, or does not get on. Not inside the
 * gate, not nested. */
void vgpu_window_wait(CUstream handle);
/* Which marks are over: proves work complete. The stream may be gone. */
void vgpu_window_look(struct vgpu_stream *s);
/* Nobody shall wait for this stream any more. No driver call. */
void vgpu_window_let_go(struct vgpu_stream *s);
/* Destroys the marks of a stream that is gone, in its context; the fence is held
 * exclusively. False: not now. */
bool vgpu_window_close(struct vgpu_stream *s);
bool vgpu_window_empty(struct vgpu_stream *s);

/* ---- captures (capture.c) ------------------------------------------------ */

/* Captures that are open in this process. */
extern _Atomic unsigned vgpu_captures;
/* Is a call on this stream recorded instead of run (or about to fail)? */
bool vgpu_is_captured(CUstream handle);
void vgpu_capture_over(struct vgpu_stream *s);
/* Around the taking of a context's records: a capture that begins puts probes into
 * contexts of other threads, and none of them may go meanwhile. */
void vgpu_capture_lock(void);
void vgpu_capture_unlock(void);

/* ---- before and after each hooked call ----------------------------------- */

struct vgpu_mark {
	struct vgpu_stream *stream;
	uint64_t number;
};
struct vgpu_call {
	CUstream handle;
	struct vgpu_stream *stream;
	uint64_t number;           /* submitted, before the call */
	uint64_t version;          /* of an event's entry */
	CUcontext context;
	CUdevice device;           /* of a primary context */
	bool gated;
	bool waits;                /* the call returns after its work */
	bool fenced;
	bool last;                 /* it destroys, and does not only lower a count */
	CUgreenCtx green;
	bool own;                  /* a green context whose CUcontext is not the primary one */
	struct vgpu_stream *taken, *detached;
	struct vgpu_charge *charges; /* of a context that is ended (memory.h) */
	/* Of a whole context: what each busy stream had, before the call. */
	unsigned n, room;
	struct vgpu_mark *marks;
};

static inline void vgpu_nested_begin(struct vgpu_call *call)
{
	(void)call;
	vgpu_thread.nested++;
}

static inline void vgpu_nested_end(void)
{
	vgpu_thread.nested--;
}

/* host.c: does the driver permit calls on this thread? Not in a host function:
 * there nothing of ours waits, and the driver refuses the call. Not nested. */
bool vgpu_may_wait(void *arg);

/* work.c */
void vgpu_work_count(CUstream handle, CUresult r);

VGPU_HOT void vgpu_work_begin(struct vgpu_call *call, CUstream stream, enum vgpu_default d)
{
	call->handle = vgpu_stream_handle(stream, d);
	/* A captured call is not work; what the graph does later is. */
	call->gated = !(atomic_load_explicit(&vgpu_captures, memory_order_acquire) > 0 && vgpu_is_captured(call->handle));
	if (call->gated) {
		if (atomic_load_explicit(&vgpu_full, memory_order_relaxed) > 0)
			vgpu_window_wait(call->handle);
		vgpu_gate_enter();
	}
	vgpu_thread.nested++;
}

/* The thread stays nested until the work is counted, for vgpu_stream_count. */
VGPU_HOT void vgpu_work_end(struct vgpu_call *call, CUresult r)
{
	struct vgpu_stream *s;

	if (call->gated) {
		atomic_signal_fence(memory_order_seq_cst);
		if (r != CUDA_SUCCESS || !(s = vgpu_stream_last(call->handle, NULL)))
			vgpu_work_count(call->handle, r);
		else if (vgpu_stream_count(s))
			vgpu_window_mark(s, call->handle);
		atomic_signal_fence(memory_order_seq_cst);
		vgpu_gate_leave();
	}
	vgpu_thread.nested--;
}

/* A copy to the host, of size bytes, on the default stream: it has happened once
 * the call returns. */
void vgpu_copy_begin(struct vgpu_call *call, enum vgpu_default d, size_t size);
void vgpu_copy_end(struct vgpu_call *call, CUresult r);
void vgpu_launch_ex_begin(struct vgpu_call *call, const CUlaunchConfig *config, enum vgpu_default d);
/* A graph may be uploaded as it is made, on a stream among the parameters. */
void vgpu_instantiate_begin(struct vgpu_call *call, const CUDA_GRAPH_INSTANTIATE_PARAMS *params, enum vgpu_default d);
void vgpu_launch_multi_begin(struct vgpu_call *call);
void vgpu_launch_multi_end(struct vgpu_call *call, CUresult r, CUDA_LAUNCH_PARAMS *list, unsigned int n);

/* sync.c */
void vgpu_sync_stream_begin(struct vgpu_call *call, CUstream stream, enum vgpu_default d);
void vgpu_sync_end(struct vgpu_call *call, CUresult r);
void vgpu_sync_event_begin(struct vgpu_call *call, CUevent event);
void vgpu_sync_event_end(struct vgpu_call *call, CUresult r, CUevent event);
void vgpu_sync_context_begin(struct vgpu_call *call, CUcontext context);
void vgpu_sync_context_end(struct vgpu_call *call, CUresult r);

/* events.c */
void vgpu_event_record_begin(struct vgpu_call *call, CUevent event, CUstream stream, enum vgpu_default d);
void vgpu_event_record_end(struct vgpu_call *call, CUresult r, CUevent event);
/* Recorded behind more than one stream. */
void vgpu_event_elsewhere_begin(struct vgpu_call *call, CUevent event);
void vgpu_event_other_end(struct vgpu_call *call);
void vgpu_event_destroy_begin(struct vgpu_call *call, CUevent event);
void vgpu_event_shared_begin(struct vgpu_call *call, CUevent event);
void vgpu_event_opened_end(struct vgpu_call *call, CUresult r, CUevent *event);
void vgpu_event_in_node_begin(struct vgpu_call *call, const CUgraphNodeParams *params);
void vgpu_event_share(CUevent event);
/* What the event stands behind; false if that is not known. */
bool vgpu_event_read(CUevent event, struct vgpu_mark *mark, uint64_t *version);

/* capture.c */
void vgpu_capture_begin_begin(struct vgpu_call *call, CUstream stream, enum vgpu_default d);
void vgpu_capture_begin_end(struct vgpu_call *call, CUresult r);
void vgpu_capture_end_begin(struct vgpu_call *call, CUstream stream, enum vgpu_default d);
void vgpu_capture_end_end(struct vgpu_call *call, CUresult r);
void vgpu_stream_wait_begin(struct vgpu_call *call, CUstream stream, enum vgpu_default d);
void vgpu_stream_wait_end(struct vgpu_call *call);

/* contexts.c */
void vgpu_stream_destroy_begin(struct vgpu_call *call, CUstream stream);
void vgpu_stream_destroy_end(struct vgpu_call *call, CUresult r);
void vgpu_context_destroy_begin(struct vgpu_call *call, CUcontext context);
void vgpu_context_destroy_end(struct vgpu_call *call, CUresult r);
void vgpu_context_attach_begin(struct vgpu_call *call);
void vgpu_context_attach_end(struct vgpu_call *call, CUresult r, CUcontext *context);
void vgpu_context_detach_begin(struct vgpu_call *call, CUcontext context);
void vgpu_context_detach_end(struct vgpu_call *call, CUresult r, CUcontext context);
void vgpu_green_made(struct vgpu_call *call, CUresult r, CUdevice device);
void vgpu_green_destroy_begin(struct vgpu_call *call, CUgreenCtx green);
void vgpu_green_destroy_end(struct vgpu_call *call, CUresult r);
void vgpu_primary_retain_end(struct vgpu_call *call, CUresult r, CUcontext *context, CUdevice device);
void vgpu_primary_retain_begin(struct vgpu_call *call, CUdevice device);
void vgpu_primary_reset_begin(struct vgpu_call *call, CUdevice device);
void vgpu_primary_reset_end(struct vgpu_call *call, CUresult r);
void vgpu_primary_release_begin(struct vgpu_call *call, CUdevice device);
void vgpu_primary_release_end(struct vgpu_call *call, CUresult r, CUdevice device);

/* procaddr.c */
CUresult vgpu_cuGetProcAddress(__typeof__(&cuGetProcAddress) real, const void *caller, const char *symbol, void **pfn,
			       int version, cuuint64_t flags);
CUresult vgpu_cuGetProcAddress_v2(__typeof__(&cuGetProcAddress_v2) real, const void *caller, const char *symbol, void **pfn,
				  int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status);
CUresult vgpu_cuGetProcAddress_v2_ptsz(__typeof__(&cuGetProcAddress_v2_ptsz) real, const void *caller, const char *symbol,
				       void **pfn, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status);
/* Tells vgpud what was counted before there was a gate. */
void vgpu_procaddr_report(void);

#endif
