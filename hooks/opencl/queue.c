/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues, and what is in flight on them. Of a queue in order the newest event stands
 * for all before it, and every few commands one is kept that tells how far the queue
 * has got; of one out of order each event is kept until it is over.
 *
 * Nobody asks while a process is alone: its own waiting calls prove that its work is
 * over. While somebody else wants the GPU the library's thread asks, and flushes,
 * since an implementation need not begin what nobody flushed.
 */
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "opencl.h"

/* The bound on what is in flight on one queue, in commands: before anything was
 * measured, at least and at most. */
#define FIRST        8
#define LEAST        2
#define MOST         1024
#define MARKS        4         /* flights kept of a bound's worth of commands */
#define STALL_NS     20000000  /* a queue that stands still for so long gets twice the room */
#define STALLS_MAX   10        /* after so many there is no bound */
#define PAUSE_MIN_NS 20000
#define PAUSE_MAX_NS 1000000
#define LOOKS        64        /* flights asked for at once */

pthread_mutex_t vgpu_lock = PTHREAD_MUTEX_INITIALIZER;

/* Under the lock. */
static struct {
	struct vgpu_hash by_handle;
	struct vgpu_queue *list;
} queues;

/* Commands in flight, and known to be over. Written under the lock; release, so that
 * who reads 0 sees the queues as they are then. */
static _Atomic uint64_t flying, over;

static pthread_rwlock_t fence = PTHREAD_RWLOCK_INITIALIZER;

void vgpu_fence_share(void)
{
	pthread_rwlock_rdlock(&fence);
}

void vgpu_fence_release(void)
{
	pthread_rwlock_unlock(&fence);
}

static uint64_t now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* ---- records --------------------------------------------------------------- */

static struct vgpu_queue *make(cl_command_queue handle)
{
	cl_command_queue_properties properties = 0;
	struct vgpu_queue *q;
	cl_device_id device;
	cl_context context;
	int gpu;

	if (vgpu_next.clGetCommandQueueInfo(handle, CL_QUEUE_DEVICE, sizeof(device), &device, NULL) != CL_SUCCESS ||
	    vgpu_next.clGetCommandQueueInfo(handle, CL_QUEUE_CONTEXT, sizeof(context), &context, NULL) != CL_SUCCESS ||
	    vgpu_next.clGetCommandQueueInfo(handle, CL_QUEUE_PROPERTIES, sizeof(properties), &properties, NULL) != CL_SUCCESS)
		return NULL; /* the implementation says what is wrong with it */
	gpu = vgpu_device_gpu(device);
	q = calloc(1, sizeof(*q));
	if (!q)
		return NULL;
	q->node.key = (uintptr_t)handle;
	q->handle = handle;
	q->context = context;
	q->gpu = gpu;
	q->in_order = !(properties & CL_QUEUE_OUT_OF_ORDER_EXEC_MODE_ENABLE);
	return q;
}

struct vgpu_queue *vgpu_queue_use(cl_command_queue handle)
{
	struct vgpu_queue *q, *made = NULL;

	pthread_mutex_lock(&vgpu_lock);
	q = (struct vgpu_queue *)vgpu_hash_find(&queues.by_handle, 0, (uintptr_t)handle);
	if (!q && handle) {
		pthread_mutex_unlock(&vgpu_lock);
		made = make(handle);
		pthread_mutex_lock(&vgpu_lock);
		q = (struct vgpu_queue *)vgpu_hash_find(&queues.by_handle, 0, (uintptr_t)handle);
		if (!q && made) {
			q = made;
			made = NULL;
			vgpu_hash_add(&queues.by_handle, &q->node);
			q->next = queues.list;
			queues.list = q;
		}
	}
	if (q && q->gpu < 0)
		q = NULL;
	if (q)
		q->uses++;
	pthread_mutex_unlock(&vgpu_lock);
	free(made);
	return q;
}

/* With the lock: frees a record that nobody needs any more. */
static void drop(struct vgpu_queue *q)
{
	struct vgpu_queue **at = &queues.list;

	if (q->handle || q->uses || q->first)
		return;
	while (*at != q)
		at = &(*at)->next;
	*at = q->next;
	free(q);
}

void vgpu_queue_unuse(struct vgpu_queue *q)
{
	pthread_mutex_lock(&vgpu_lock);
	q->uses--;
	drop(q);
	pthread_mutex_unlock(&vgpu_lock);
}

void vgpu_queue_forget(cl_command_queue handle)
{
	struct vgpu_queue *q;

	pthread_mutex_lock(&vgpu_lock);
	q = (struct vgpu_queue *)vgpu_hash_take(&queues.by_handle, 0, (uintptr_t)handle);
	if (q) {
		q->handle = NULL;
		drop(q);
	}
	pthread_mutex_unlock(&vgpu_lock);
}

uint64_t vgpu_queue_submitted(struct vgpu_queue *q)
{
	uint64_t n;

	pthread_mutex_lock(&vgpu_lock);
	n = q->submitted;
	pthread_mutex_unlock(&vgpu_lock);
	return n;
}

/* ---- what is in flight ----------------------------------------------------- */

static uint64_t bound_of(const struct vgpu_queue *q)
{
	bool budget;
	uint64_t bound_ns = (uint64_t)vgpu_gate_bound_us(&budget) * 750; /* three quarters: for the time to see an end */
	uint64_t n = q->unit_ns ? bound_ns / q->unit_ns : FIRST;

	n = n < LEAST ? LEAST : n;
	n = n < MOST ? n : MOST;
	return q->stalls < STALLS_MAX ? n << q->stalls : UINT64_MAX;
}

void vgpu_queue_add(struct vgpu_queue *q, struct vgpu_flight *f, cl_event event, struct vgpu_flight **trash)
{
	struct vgpu_flight *last = q->last, **at;

	if (q->submitted == q->completed) {
		q->seen_ns = now_ns();
		q->seen = q->completed;
	}
	f->event = event;
	f->number = ++q->submitted;
	f->next = NULL;
	q->unflushed = true;
	atomic_fetch_add_explicit(&flying, 1, memory_order_release);
	if (q->in_order && last && last->number > q->marked) {
		/* Of those before it the newest is enough, but for a mark. */
		if (last->number - q->marked < bound_of(q) / MARKS) {
			for (at = &q->first; *at != last;)
				at = &(*at)->next;
			*at = f;
			q->last = f;
			last->gone = true;
			if (last->uses == 0) {
				last->next = *trash;
				*trash = last;
			}
			return;
		}
		q->marked = last->number;
	}
	if (last)
		last->next = f;
	else
		q->first = f;
	q->last = f;
}

void vgpu_flights_free(struct vgpu_flight *list)
{
	struct vgpu_flight *next;

	for (; list; list = next) {
		next = list->next;
		vgpu_next.clReleaseEvent(list->event);
		free(list);
	}
}

/* With the lock: n more commands are over. */
static void count(struct vgpu_queue *q, uint64_t n)
{
	q->completed += n;
	q->stalls = 0;
	atomic_fetch_sub_explicit(&flying, n, memory_order_release);
	atomic_fetch_add_explicit(&over, n, memory_order_relaxed);
}

/* With the lock: takes out the flights that match, all up to a number or one. */
static void take(struct vgpu_queue *q, uint64_t number, const struct vgpu_flight *one, struct vgpu_flight **trash)
{
	struct vgpu_flight **at = &q->first, *f, *last = NULL;

	while ((f = *at)) {
		if (one ? f != one : f->number > number) {
			last = f;
			at = &f->next;
			continue;
		}
		*at = f->next;
		f->gone = true;
		if (!q->in_order)
			count(q, 1);
		if (f->uses == 0) {
			f->next = *trash;
			*trash = f;
		}
	}
	q->last = last;
	if (q->in_order && !one && number > q->completed)
		count(q, number - q->completed);
}

/* With the lock, after a look: what a command takes, if the queue was busy since the
 * one before. */
static void measure(struct vgpu_queue *q)
{
	uint64_t now = now_ns(), done = q->completed - q->seen, unit;

	if (q->submitted == q->completed)
		return; /* since when, nobody knows */
	if (done == 0)
		return;
	unit = (now - q->seen_ns) / done;
	q->unit_ns = q->unit_ns ? (q->unit_ns * 3 + unit) / 4 : unit;
	q->unit_ns += q->unit_ns == 0;
	q->seen = q->completed;
	q->seen_ns = now;
}

static bool is_over(cl_event event)
{
	cl_int status = CL_QUEUED, r;

	r = vgpu_next.clGetEventInfo(event, CL_EVENT_COMMAND_EXECUTION_STATUS, sizeof(status), &status, NULL);
	if (r == CL_OUT_OF_RESOURCES || r == CL_OUT_OF_HOST_MEMORY)
		return false;
	return r != CL_SUCCESS || status <= CL_COMPLETE; /* less: it ended with an error */
}

void vgpu_queue_look(struct vgpu_queue *q)
{
	struct vgpu_flight *f[LOOKS], *trash = NULL;
	bool done[LOOKS];
	int n = 0;

	pthread_mutex_lock(&vgpu_lock);
	for (struct vgpu_flight *at = q->first; at && n < LOOKS; at = at->next) {
		at->uses++;
		f[n++] = at;
	}
	if (n == LOOKS && q->in_order && f[n - 1] != q->last) {
		f[n - 1]->uses--;
		f[n - 1] = q->last;
		f[n - 1]->uses++;
	}
	pthread_mutex_unlock(&vgpu_lock);
	if (n == 0)
		return;
	vgpu_cl_thread.nested++;
	if (q->in_order) {
		/* The newest that is over says it of all before it. */
		bool found = false;

		for (int i = n - 1; i >= 0; i--) {
			found = found || is_over(f[i]->event);
			done[i] = found;
		}
	} else {
		for (int i = 0; i < n; i++)
			done[i] = is_over(f[i]->event);
	}
	vgpu_cl_thread.nested--;
	pthread_mutex_lock(&vgpu_lock);
	for (int i = n - 1; i >= 0; i--) {
		f[i]->uses--;
		if (f[i]->gone) {
			if (f[i]->uses == 0) {
				f[i]->next = trash;
				trash = f[i];
			}
		} else if (done[i]) {
			take(q, f[i]->number, q->in_order ? NULL : f[i], &trash);
		}
	}
	measure(q);
	pthread_mutex_unlock(&vgpu_lock);
	vgpu_cl_thread.nested++;
	vgpu_flights_free(trash);
	vgpu_cl_thread.nested--;
}

void vgpu_queue_done(struct vgpu_queue *q, uint64_t number)
{
	struct vgpu_flight *trash = NULL;

	pthread_mutex_lock(&vgpu_lock);
	take(q, number, NULL, &trash);
	measure(q);
	pthread_mutex_unlock(&vgpu_lock);
	vgpu_cl_thread.nested++;
	vgpu_flights_free(trash);
	vgpu_cl_thread.nested--;
}

/* Calls visit for each queue with something in flight. */
static void each(void (*visit)(struct vgpu_queue *q))
{
	struct vgpu_queue *q, *next;

	pthread_mutex_lock(&vgpu_lock);
	for (q = queues.list; q; q = next) {
		if (q->first) {
			q->uses++;
			pthread_mutex_unlock(&vgpu_lock);
			visit(q);
			pthread_mutex_lock(&vgpu_lock);
			q->uses--;
		}
		next = q->next;
		drop(q);
	}
	pthread_mutex_unlock(&vgpu_lock);
}

void vgpu_notify(void)
{
	if (atomic_load_explicit(&flying, memory_order_acquire) > 0)
		each(vgpu_queue_look);
	vgpu_gate_complete(); /* asks in_flight first */
}

cl_uint vgpu_queue_references(cl_event event)
{
	cl_uint n = 0;

	pthread_mutex_lock(&vgpu_lock);
	for (struct vgpu_queue *q = queues.list; q; q = q->next)
		for (struct vgpu_flight *f = q->first; f; f = f->next)
			n += f->event == event;
	pthread_mutex_unlock(&vgpu_lock);
	return n;
}

/* ---- the bound -------------------------------------------------------------- */

static void flush(struct vgpu_queue *q)
{
	cl_command_queue handle;

	pthread_mutex_lock(&vgpu_lock);
	handle = q->unflushed ? q->handle : NULL;
	q->unflushed = false;
	pthread_mutex_unlock(&vgpu_lock);
	if (!handle)
		return;
	vgpu_cl_thread.nested++;
	vgpu_next.clFlush(handle);
	vgpu_cl_thread.nested--;
}

static bool is_full(struct vgpu_queue *q, uint64_t *completed)
{
	bool full;

	pthread_mutex_lock(&vgpu_lock);
	*completed = q->completed;
	full = q->submitted - q->completed >= bound_of(q);
	pthread_mutex_unlock(&vgpu_lock);
	return full;
}

static void double_room(struct vgpu_queue *q)
{
	pthread_mutex_lock(&vgpu_lock);
	q->stalls += q->stalls < STALLS_MAX;
	pthread_mutex_unlock(&vgpu_lock);
}

/* By the system call: glibc's function is a point of cancellation. */
static void pause_ns(uint64_t ns)
{
	struct timespec ts = { .tv_nsec = (long)ns };

	syscall(SYS_nanosleep, &ts, NULL);
}

void vgpu_queue_wait(struct vgpu_queue *q)
{
	uint64_t completed, before, moved_ns = 0, now, pause = PAUSE_MIN_NS;

	if (!is_full(q, &before))
		return;
	/* The caller has the handle, so nobody else releases it. */
	flush(q);
	while (atomic_load_explicit(&vgpu_active, memory_order_relaxed)) {
		vgpu_queue_look(q);
		if (!is_full(q, &completed))
			return;
		now = now_ns();
		if (completed != before || !moved_ns) {
			before = completed;
			moved_ns = now;
		} else if (now - moved_ns > STALL_NS) {
			/* It may depend on the very call that waits here. */
			double_room(q);
			moved_ns = now;
		}
		pause_ns(pause);
		pause = pause * 2 < PAUSE_MAX_NS ? pause * 2 : PAUSE_MAX_NS;
	}
}

/* ---- what the gate asks ------------------------------------------------------ */

static bool in_flight(void *arg)
{
	(void)arg;
	return atomic_load_explicit(&flying, memory_order_acquire) > 0;
}

static void flush_and_look(struct vgpu_queue *q)
{
	flush(q);
	vgpu_queue_look(q);
}

static bool poll(void *arg)
{
	if (!atomic_load_explicit(&vgpu_active, memory_order_acquire))
		return in_flight(NULL);
	if (pthread_rwlock_trywrlock(&fence) != 0)
		return true; /* a queue is being released: look again soon */
	each(flush_and_look);
	pthread_rwlock_unlock(&fence);
	return in_flight(arg);
}

static uint64_t completed(void *arg)
{
	(void)arg;
	return atomic_load_explicit(&over, memory_order_relaxed);
}

static bool may_wait(void *arg)
{
	(void)arg;
	vgpu_cl_thread.passed = vgpu_cl_thread.callback > 0;
	return !vgpu_cl_thread.passed;
}

const struct vgpu_gate_ops vgpu_ops = { .in_flight = in_flight, .poll = poll, .completed = completed, .may_wait = may_wait };
