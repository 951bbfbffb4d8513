/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The bound on what is in flight: so much that the GPU does not run dry, so
 * little that a turn that is revoked is over soon. vgpud says how much, in time
 * (vgpu_gate_bound_us); it is kept stream by stream.
 *
 * Every so many submissions (a window, a quarter of what may be in flight) an
 * event goes behind them, a mark. The GPU's own time between two marks tells
 * what a piece of work takes on that stream, with what other streams of the
 * process took in between: streams that share the GPU see each other's work as
 * slowness, and each has the time that its own queue needs to drain. So the bound
 * of each is the bound of all, once they have been measured side by side.
 *
 * A thread that is about to submit to a full stream waits first, outside the
 * gate: nobody counts it, and a turn can end meanwhile. It asks about the oldest
 * mark now and then; it never synchronises. What is in flight may depend on the
 * very submission that waits (a kernel that spins until another one runs, a value
 * that a later call writes). So a stream whose marks stand still gets twice the
 * room, again and again, and loses it as its marks go on.
 *
 * While somebody waits, a piece that is about as long as the bound, or longer, has
 * the GPU for itself until it is nearly over; then the next one is let through, in
 * time for the GPU not to wait for it. So a turn that ends drains one such piece,
 * seldom two. Nobody knows how long a piece will take, nor how late a thread wakes
 * up: where long and short ones follow each other, or the GPU ran dry lately, two
 * may be queued.
 *
 * A program that synchronises before a window is full pays a load and a compare
 * a launch, and nothing of ours is in its streams. But while no more may be in
 * flight than a drain may take, as somebody waits, the first piece is measured at
 * once: a few of them can be too much.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "driver.h"

/* Pieces of work in flight on a stream: never fewer than one that runs and one
 * that is queued, and not more than drivers queue themselves. */
#define PIECES_MIN      2
#define PIECES_MAX      1024
#define PIECES_UNKNOWN  32     /* at most, while nothing was measured */
#define FIRST_MARK      16     /* before anything was measured: so late */
#define QUARTER         4      /* windows in flight; the slack of the bound */

#define STALL_MIN_NS     20000000   /* a stream stands still after so long, */
#define STALL_UNKNOWN_NS 50000000   /* or, before anything was measured, so long, */
#define STALL_MAX_NS     1000000000 /* or, if its pieces are long, up to so long */
#define STALLS_SLOWER    3          /* each of the first stalls takes twice as long */
#define STALLS_MAX       20

#define LEAD_MIN_NS     200000   /* so long before the end of a long piece, or a quarter of it, the next is let through; */
#define ALONE_MAX_NS    20000000 /* so long after its begin at the latest */

#define DRY             64     /* pieces that are not alone after one was for too long, as this machine is busy */
#define COMES_NS        10000000 /* after a pause a thread that waits is back within that */

#define PAUSE_MIN_NS    20000  /* between two looks */
#define PAUSE_MAX_NS    2500000
#define PAUSES          20     /* looks while the bound passes, at least */

_Atomic unsigned vgpu_full;

/* What a piece took on the stream that was measured last, for streams that are
 * new. Relaxed: a guess. */
static _Alignas(64) _Atomic uint64_t typical_ns; /* not beside vgpu_full, which each launch reads */

struct bound {
	uint64_t ns;               /* of work in flight; 0: no bound */
	bool budget;               /* it is what a drain may take, as somebody waits */
};

static struct bound bound_now(void)
{
	struct bound b;

	b.ns = (uint64_t)vgpu_gate_bound_us(&b.budget) * 1000;
	return b;
}

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static uint64_t least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint64_t most(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

static bool take(struct vgpu_window *w)
{
	/* Acquire: what the last holder wrote. */
	return !atomic_exchange_explicit(&w->taken, true, memory_order_acquire);
}

static void give(struct vgpu_window *w)
{
	atomic_store_explicit(&w->taken, false, memory_order_release);
}

static void set_full(struct vgpu_window *w, bool full)
{
	/* The exchange alone decides who counts; the count is a hint. */
	if (atomic_exchange_explicit(&w->full, full, memory_order_relaxed) == full)
		return;
	if (full)
		atomic_fetch_add_explicit(&vgpu_full, 1, memory_order_relaxed);
	else
		atomic_fetch_sub_explicit(&vgpu_full, 1, memory_order_relaxed);
}

void vgpu_window_let_go(struct vgpu_stream *s)
{
	set_full(&s->window, false);
}

/* ---- what follows is called with the window taken ----------------------- */

static bool current(struct vgpu_stream *s)
{
	return s->window.use == atomic_load_explicit(&s->use, memory_order_relaxed);
}

/* The record stands for another stream than before. The events of the former are
 * destroyed, or went with their context. */
static void renew(struct vgpu_stream *s)
{
	struct vgpu_window *w = &s->window;

	memset(w->mark, 0, sizeof(w->mark));
	w->first = w->n = w->stalls = 0;
	w->before = false;
	w->unit_ns = w->last_ns = w->least_ns = w->moved_ns = 0;
	w->alone = false;
	w->together = 0;
	w->completed = atomic_load_explicit(&s->completed, memory_order_relaxed);
	w->use = atomic_load_explicit(&s->use, memory_order_relaxed);
}

static struct vgpu_window_mark *at(struct vgpu_window *w, unsigned i)
{
	return &w->mark[(w->first + i) % VGPU_WINDOW_MARKS];
}

/* Two marks after each other are over. */
static void measure(struct vgpu_window *w, const struct vgpu_window_mark *from, const struct vgpu_window_mark *to)
{
	float ms;
	uint64_t ns, unit;

	if (to->number <= from->number ||
	    VGPU_REAL(cuEventElapsedTime)(&ms, from->event, to->event) != CUDA_SUCCESS || !(ms >= 0))
		return;
	ns = most((uint64_t)((double)ms * 1e6) / (to->number - from->number), 1);
	w->together -= w->together > 0;
	unit = w->unit_ns;
	if (to->tight) {
		/* Up at once, since that keeps the bound; down by halves. */
		w->unit_ns = most(ns, unit / 2);
		w->least_ns = least(ns, w->last_ns);
		w->last_ns = ns;
		atomic_store_explicit(&typical_ns, ns, memory_order_relaxed);
	} else if (unit ? ns < unit : ns < (uint64_t)VGPU_DRAIN_US * 1000 / PIECES_UNKNOWN) {
		/* The stream may have run dry in between: no more than that. */
		w->unit_ns = w->last_ns = ns;
		w->least_ns = least(ns, w->least_ns);
	}
}

static void drop_marks(struct vgpu_window *w)
{
	w->n = 0;
	w->before = false;
}

/* Nested, in the stream's context. */
static void look(struct vgpu_stream *s)
{
	struct vgpu_window *w = &s->window;
	uint64_t completed;
	CUresult r;

	while (w->n > 0) {
		struct vgpu_window_mark *m = at(w, 0);

		completed = atomic_load_explicit(&s->completed, memory_order_acquire);
		if (completed < m->number) {
			r = VGPU_REAL(cuEventQuery)(m->event);
			if (r == CUDA_ERROR_NOT_READY)
				return;
			if (vgpu_over(r)) /* or the context is dead, and all with it */
				vgpu_stream_done(s, m->number);
			if (r != CUDA_SUCCESS) {
				drop_marks(w);
				return;
			}
		}
		if (w->before)
			measure(w, at(w, VGPU_WINDOW_MARKS - 1), m);
		w->before = true;
		w->first = (w->first + 1) % VGPU_WINDOW_MARKS;
		w->n--;
		if (w->stalls > 0)
			w->stalls--;
	}
}

/* Asks the driver which marks are over; on any thread. */
static void ask_marks(struct vgpu_stream *s)
{
	struct vgpu_window *w = &s->window;
	struct vgpu_own own;
	uint64_t completed;

	if (w->n > 0) {
		if (vgpu_own_begin(&own, atomic_load_explicit(&s->context, memory_order_relaxed)) == CUDA_SUCCESS)
			look(s);
		else
			drop_marks(w);
		vgpu_own_end(&own);
	}
	completed = atomic_load_explicit(&s->completed, memory_order_relaxed);
	if (completed != w->completed) {
		w->completed = completed;
		w->moved_ns = now_ns();
	}
}

/* How many pieces may be in flight, before any allowance: a quarter of the bound is
 * left for pieces that take longer than usual, and for seeing that all is over. */
static uint64_t pieces(const struct vgpu_window *w, uint64_t bound_ns)
{
	uint64_t unit = w->unit_ns ? w->unit_ns : atomic_load_explicit(&typical_ns, memory_order_relaxed);
	uint64_t n = unit ? most((bound_ns - bound_ns / QUARTER) / unit, PIECES_MIN) : PIECES_UNKNOWN;

	return least(n, w->unit_ns ? PIECES_MAX : PIECES_UNKNOWN);
}

/* Submissions from mark to mark. */
static uint64_t window(const struct vgpu_window *w, uint64_t n, struct bound b)
{
	if (w->unit_ns || n < PIECES_UNKNOWN || w->n > 1)
		return most(n / QUARTER, 1);
	/* The second follows at once: when both are over a piece was measured. */
	return w->n == 0 && !b.budget ? FIRST_MARK : 1;
}

static uint64_t in_flight(struct vgpu_stream *s)
{
	/* Completed first, see vgpu_stream_busy. */
	uint64_t completed = atomic_load_explicit(&s->completed, memory_order_acquire);

	return vgpu_stream_submitted(s) - completed;
}

/* While somebody waits: when another piece may be queued behind the one that runs, if
 * two of them exceed the bound. 0: at any time. */
static uint64_t second_ns(const struct vgpu_window *w, struct bound b)
{
	uint64_t ns = w->least_ns, lead = most(ns / QUARTER, LEAD_MIN_NS);

	if (!b.budget || w->stalls + w->together > 0 || ns <= lead ||
	    ns * PIECES_MIN <= b.ns - b.ns / QUARTER)
		return 0;
	return w->moved_ns + least(ns - lead, ALONE_MAX_NS);
}

/* Is the stream full? At least one window is queued before the one that runs is
 * over, however long they are: the GPU does not wait for the process. */
static bool see_full(struct vgpu_stream *s, struct bound b)
{
	struct vgpu_window *w = &s->window;
	uint64_t limit = pieces(w, b.ns) << w->stalls;
	uint64_t second = second_ns(w, b);
	bool full;

	w->alone = second && now_ns() < second;
	full = w->n > (w->alone ? 0 : 1) && in_flight(s) >= (w->alone ? 1 : limit) &&
	       atomic_load_explicit(&s->state, memory_order_relaxed) == VGPU_STREAM_LIVE;

	atomic_store_explicit(&w->limit, limit, memory_order_relaxed);
	set_full(w, full);
	return full;
}

/* A mark behind what is submitted now. Behind a legacy launch it is no barrier
 * that the launch itself was not, but for what other threads submitted to
 * blocking streams in between. */
static void put_mark(struct vgpu_stream *s, CUstream handle, uint64_t number)
{
	struct vgpu_window *w = &s->window;
	struct vgpu_window_mark *m = at(w, w->n);
	CUcontext context = atomic_load_explicit(&s->context, memory_order_relaxed);
	struct vgpu_own own;
	CUresult r;

	if (!context)
		return;
	r = vgpu_own_begin(&own, context);
	/* Beside a capture of its context the legacy stream must be left alone. */
	if (r == CUDA_SUCCESS && handle == CU_STREAM_LEGACY &&
	    atomic_load_explicit(&vgpu_captures, memory_order_acquire) > 0 && vgpu_is_captured(handle))
		r = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	if (r == CUDA_SUCCESS && !m->event)
		r = VGPU_REAL(cuEventCreate)(&m->event, CU_EVENT_DEFAULT); /* with timing */
	if (r == CUDA_SUCCESS)
		r = VGPU_REAL(cuEventRecord)(m->event, handle);
	/* Without memory there is no mark, and no bound until there is one. */
	if (r == CUDA_SUCCESS) {
		m->number = number;
		m->tight = w->n > 0; /* all since was submitted while that one was not over */
		if (w->n++ == 0)
			w->moved_ns = now_ns();
	}
	vgpu_own_end(&own);
}

/* ---- with the window not taken ------------------------------------------- */

void vgpu_window_mark(struct vgpu_stream *s, CUstream handle)
{
	struct vgpu_window *w = &s->window;
	struct bound b = bound_now();
	uint64_t own, others, submitted, base, n, size, next;

	/* Another thread looks: it also says when it is time again. It may take
	 * long: nobody submits more than may be in flight meanwhile. */
	if (!take(w)) {
		if (in_flight(s) >= atomic_load_explicit(&w->limit, memory_order_relaxed))
			set_full(w, true);
		return;
	}
	if (!current(s))
		renew(s);
	ask_marks(s);
	others = atomic_load_explicit(&s->others, memory_order_acquire);
	own = atomic_load_explicit(&s->own, memory_order_acquire);
	submitted = own + others;
	n = pieces(w, b.ns);
	size = window(w, n, b);
	base = most(w->n > 0 ? at(w, w->n - 1)->number : 0, least(w->completed, submitted));
	/* One place is kept for the mark that was over last. */
	if (b.ns > 0 && submitted - base >= size && w->n < VGPU_WINDOW_MARKS - 1) {
		put_mark(s, handle, submitted);
		base = submitted;
	}
	next = submitted - base < size ? size - (submitted - base) : size;
	if (!see_full(s, b) && in_flight(s) < n)
		next = least(next, n - in_flight(s));
	atomic_store_explicit(&s->own_mark, own + next, memory_order_relaxed);
	atomic_store_explicit(&s->others_mark, others + next, memory_order_relaxed);
	give(w);
}

void vgpu_window_look(struct vgpu_stream *s)
{
	if (!take(&s->window))
		return;
	if (current(s))
		ask_marks(s);
	give(&s->window);
}

/* How long the stream's marks must stand still before it gets more room. */
static uint64_t patience_ns(struct vgpu_window *w, uint64_t bound_ns)
{
	uint64_t first = w->n > 0 && at(w, 0)->number > w->completed ? at(w, 0)->number - w->completed : 1;
	uint64_t usual = w->unit_ns ? least(2 * first * w->unit_ns, STALL_MAX_NS) : STALL_UNKNOWN_NS;

	return most(most(bound_ns, STALL_MIN_NS), usual) << least(w->stalls, STALLS_SLOWER);
}

/* Whether a thread that has waited since began waits on. */
static bool still_full_masked(struct vgpu_stream *s, uint64_t began, struct bound b)
{
	struct vgpu_window *w = &s->window;
	uint64_t now = now_ns();
	bool full;

	if (!take(w)) /* by a thread that is in the driver, and may be for long */
		return now - began < STALL_MAX_NS;
	if (!current(s)) {
		give(w);
		return false;
	}
	ask_marks(s);
	if (w->alone && in_flight(s) == 0)
		w->together = DRY;
	/* Whoever comes first doubles the room; the others see it and wait anew. */
	now = now_ns();
	if (now - most(w->moved_ns, began) > patience_ns(w, b.ns) && w->stalls < STALLS_MAX) {
		w->stalls++;
		w->moved_ns = now;
	}
	full = see_full(s, b);
	give(w);
	return full;
}

/* A signal handler that submits must not find its thread in the driver, or with
 * the window taken, only because it was held. */
static bool still_full(struct vgpu_stream *s, uint64_t began, struct bound b)
{
	sigset_t all, old;
	bool full;

	if (!atomic_load_explicit(&s->window.full, memory_order_relaxed))
		return false;
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	full = still_full_masked(s, began, b);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return full;
}

/* By the system call: glibc's function is a point of cancellation. */
static void pause_ns(uint64_t ns)
{
	struct timespec ts = { .tv_nsec = (long)ns };

	syscall(SYS_nanosleep, &ts, NULL);
}

void vgpu_window_wait(CUstream handle)
{
	struct vgpu_thread *t = &vgpu_thread;
	uint64_t began, pause = PAUSE_MIN_NS;
	struct vgpu_stream *s;
	struct bound b;

	if (t->held)
		return; /* a signal handler of a thread that waits: it may be what all waits for */
	s = vgpu_stream_find_quick(handle);
	if (!s || !atomic_load_explicit(&s->window.full, memory_order_relaxed) || !vgpu_may_wait(NULL))
		return;
	t->held = true;
	began = now_ns();
	while (atomic_load_explicit(&vgpu_active, memory_order_relaxed)) {
		b = bound_now();
		if (!still_full(s, began, b))
			break;
		vgpu_gate_comes(now_ns() + pause + COMES_NS);
		pause_ns(pause);
		pause = most(least(2 * pause, least(b.ns / PAUSES, PAUSE_MAX_NS)), PAUSE_MIN_NS);
	}
	vgpu_gate_comes(0);
	t->held = false;
}

bool vgpu_window_empty(struct vgpu_stream *s)
{
	struct vgpu_window *w = &s->window;
	bool empty = true;

	if (!take(w))
		return false;
	for (int i = 0; i < VGPU_WINDOW_MARKS && current(s); i++)
		empty &= !w->mark[i].event;
	give(w);
	return empty;
}

bool vgpu_window_close(struct vgpu_stream *s)
{
	struct vgpu_window *w = &s->window;

	if (!take(w))
		return false;
	for (int i = 0; i < VGPU_WINDOW_MARKS && current(s); i++)
		if (w->mark[i].event)
			VGPU_REAL(cuEventDestroy_v2)(w->mark[i].event);
	renew(s);
	give(w);
	return true;
}
