/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The records of streams: a hash table that submitting threads read without a
 * lock, and change under one. No driver call is made under that lock.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

#define BUCKETS 1024           /* a power of two */
#define CHUNK   32
#define STEPS   64             /* a reader gives up after so many records */

struct chunk {
	struct vgpu_stream records[CHUNK];
	_Atomic(struct chunk *) next;
};

static struct {
	_Atomic(struct vgpu_stream *) bucket[BUCKETS];
	_Atomic(struct chunk *) chunks;
	pthread_mutex_t lock;      /* guards every change of keys, states and links */
	struct vgpu_stream *unused;
	atomic_bool lost;
	pthread_key_t thread_key;
	bool has_thread_key;
	atomic_bool ask_green;
} table = { .lock = PTHREAD_MUTEX_INITIALIZER };

static unsigned hash(const struct vgpu_stream_key *k)
{
	uint64_t h = (uintptr_t)k->handle * 0x9e3779b97f4a7c15u;

	h ^= (uintptr_t)k->context * 0xc2b2ae3d27d4eb4fu;
	h ^= k->thread * 0x165667b19e3779f9u;
	return (unsigned)(h >> 40) & (BUCKETS - 1);
}

/* The key under which this thread finds a stream: a default stream belongs to
 * the current context, the per-thread one to this thread too. */
static bool key_of(CUstream handle, struct vgpu_stream_key *k)
{
	*k = (struct vgpu_stream_key){ .handle = handle };
	if (handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD)
		return true;
	if (handle == CU_STREAM_PER_THREAD)
		k->thread = vgpu_thread_number();
	return VGPU_REAL(cuCtxGetCurrent)(&k->context) == CUDA_SUCCESS && k->context;
}

/* A record may be put to another use while it is read: version tells. */
static bool matches(struct vgpu_stream *s, const struct vgpu_stream_key *k)
{
	uint32_t v = atomic_load_explicit(&s->version, memory_order_acquire);
	bool same;

	if (v & 1)
		return false;
	same = atomic_load_explicit(&s->handle, memory_order_relaxed) == k->handle &&
	       atomic_load_explicit(&s->key_context, memory_order_relaxed) == k->context &&
	       atomic_load_explicit(&s->thread, memory_order_relaxed) == k->thread;
	/* The loads above must not pass the second load of version. */
	atomic_thread_fence(memory_order_acquire);
	return same && atomic_load_explicit(&s->version, memory_order_relaxed) == v;
}

/* May miss a record that is there: it gives up after STEPS, and a record that
 * is put to another use under it leads it into another bucket. */
static struct vgpu_stream *lookup(const struct vgpu_stream_key *k)
{
	struct vgpu_thread *t = &vgpu_thread;
	struct vgpu_stream *s = vgpu_stream_last(k->handle, k->context);
	uint32_t v;

	if (s)
		return s; /* most calls name the stream of the call before */
	/* Acquire: the fields of a record are written before it is linked. */
	s = atomic_load_explicit(&table.bucket[hash(k)], memory_order_acquire);
	for (int i = 0; s && i < STEPS; i++) {
		v = atomic_load_explicit(&s->version, memory_order_acquire);
		if (matches(s, k)) {
			/* Read before the match, so that a change since shows. */
			t->last = s;
			t->last_version = v;
			t->last_handle = k->handle;
			t->last_context = k->context;
			return s;
		}
		s = atomic_load_explicit(&s->next, memory_order_acquire);
	}
	return NULL;
}

/* lookup without its limits, under the lock. */
static struct vgpu_stream *lookup_locked(const struct vgpu_stream_key *k)
{
	struct vgpu_stream *s = atomic_load_explicit(&table.bucket[hash(k)], memory_order_relaxed);

	while (s && !matches(s, k))
		s = atomic_load_explicit(&s->next, memory_order_relaxed);
	return s;
}

static void set_key(struct vgpu_stream *s, const struct vgpu_stream_key *k)
{
	atomic_fetch_add_explicit(&s->version, 1, memory_order_relaxed);
	/* Odd before the fields change ... */
	atomic_thread_fence(memory_order_release);
	atomic_store_explicit(&s->handle, k->handle, memory_order_relaxed);
	atomic_store_explicit(&s->key_context, k->context, memory_order_relaxed);
	atomic_store_explicit(&s->thread, k->thread, memory_order_relaxed);
	/* ... and even only after. */
	atomic_fetch_add_explicit(&s->version, 1, memory_order_release);
}

/* Under the lock. */
static struct vgpu_stream_key key_in(struct vgpu_stream *s)
{
	return (struct vgpu_stream_key){
		.handle = atomic_load_explicit(&s->handle, memory_order_relaxed),
		.context = atomic_load_explicit(&s->key_context, memory_order_relaxed),
		.thread = atomic_load_explicit(&s->thread, memory_order_relaxed),
	};
}

static void unlink_locked(struct vgpu_stream *s)
{
	struct vgpu_stream_key k = key_in(s), none = { 0 };
	_Atomic(struct vgpu_stream *) *at = &table.bucket[hash(&k)];
	struct vgpu_stream *x;

	while ((x = atomic_load_explicit(at, memory_order_relaxed)) && x != s)
		at = &x->next;
	if (!x)
		return;
	vgpu_window_let_go(s);
	/* s keeps its next: a reader that stands on it goes on from there. */
	atomic_store_explicit(at, atomic_load_explicit(&s->next, memory_order_relaxed), memory_order_release);
	set_key(s, &none);
}

static void link_locked(struct vgpu_stream *s, const struct vgpu_stream_key *k)
{
	_Atomic(struct vgpu_stream *) *bucket = &table.bucket[hash(k)];

	set_key(s, k);
	atomic_store_explicit(&s->state, VGPU_STREAM_LIVE, memory_order_release);
	atomic_store_explicit(&s->next, atomic_load_explicit(bucket, memory_order_relaxed), memory_order_relaxed);
	atomic_store_explicit(bucket, s, memory_order_release);
}

static void free_locked(struct vgpu_stream *s)
{
	atomic_store_explicit(&s->probe, NULL, memory_order_relaxed);
	atomic_store_explicit(&s->state, VGPU_STREAM_FREE, memory_order_relaxed);
	/* next stays: a reader that stands on s goes on from there. */
	s->unused = table.unused;
	table.unused = s;
}

static bool grow_locked(void)
{
	struct chunk *c;

	if (posix_memalign((void **)&c, 64, sizeof(*c)) != 0)
		return false;
	memset(c, 0, sizeof(*c));
	for (int i = 0; i < CHUNK; i++)
		free_locked(&c->records[i]);
	atomic_store_explicit(&c->next, atomic_load_explicit(&table.chunks, memory_order_relaxed), memory_order_relaxed);
	/* Release: whoever walks the chunks sees zeroed records. */
	atomic_store_explicit(&table.chunks, c, memory_order_release);
	return true;
}

/* A record that this thread owns, or nobody yet, is worth a short search. */
static struct vgpu_stream *unused_locked(uint64_t thread)
{
	struct vgpu_stream **at = &table.unused, *s;

	if (!table.unused && !grow_locked())
		return NULL;
	for (int i = 0; i < 8 && *at && (*at)->owner && (*at)->owner != thread; i++)
		at = &(*at)->unused;
	if (!*at)
		at = &table.unused;
	s = *at;
	*at = s->unused;
	if (!s->owner)
		s->owner = thread;
	return s;
}

struct vgpu_stream *vgpu_stream_find_quick(CUstream handle)
{
	struct vgpu_stream_key k;

	return key_of(handle, &k) ? lookup(&k) : NULL;
}

struct vgpu_stream *vgpu_stream_find(CUstream handle)
{
	struct vgpu_stream_key k;
	struct vgpu_stream *s;

	if (!key_of(handle, &k))
		return NULL;
	s = lookup(&k);
	if (s)
		return s;
	pthread_mutex_lock(&table.lock);
	s = lookup_locked(&k);
	pthread_mutex_unlock(&table.lock);
	return s;
}

struct vgpu_stream *vgpu_stream_get(CUstream handle)
{
	struct vgpu_stream_key k;
	struct vgpu_stream *s;
	CUgreenCtx green = NULL;
	CUcontext context;

	if (!key_of(handle, &k))
		return NULL;
	s = lookup(&k);
	if (s)
		return s;
	context = k.context;
	if (!context && atomic_load_explicit(&table.ask_green, memory_order_relaxed) &&
	    VGPU_REAL(cuStreamGetGreenCtx)(handle, &green) != CUDA_SUCCESS)
		green = NULL;
	if (!context && VGPU_REAL(cuStreamGetCtx)(handle, &context) != CUDA_SUCCESS &&
	    VGPU_REAL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS)
		context = NULL;
	vgpu_reap();
	pthread_mutex_lock(&table.lock);
	s = lookup_locked(&k);
	if (!s && (s = unused_locked(vgpu_thread_number()))) {
		atomic_store_explicit(&s->context, context, memory_order_relaxed);
		atomic_store_explicit(&s->green, green, memory_order_relaxed);
		atomic_store_explicit(&s->probe_covers, 0, memory_order_relaxed);
		atomic_store_explicit(&s->unprobed, false, memory_order_relaxed);
		atomic_store_explicit(&s->capturing, false, memory_order_relaxed);
		/* The first submission looks at the window and makes it this
		 * stream's. */
		atomic_fetch_add_explicit(&s->use, 1, memory_order_relaxed);
		atomic_store_explicit(&s->own_mark, 0, memory_order_relaxed);
		atomic_store_explicit(&s->others_mark, 0, memory_order_relaxed);
		link_locked(s, &k);
		if (k.thread && table.has_thread_key)
			pthread_setspecific(table.thread_key, (void *)(uintptr_t)k.thread);
	}
	pthread_mutex_unlock(&table.lock);
	if (!s)
		atomic_store_explicit(&table.lost, true, memory_order_release);
	return s;
}

static struct vgpu_stream *take_locked(struct vgpu_stream *s, struct vgpu_stream *list)
{
	s->was = key_in(s);
	s->was_orphan = atomic_load_explicit(&s->state, memory_order_relaxed) == VGPU_STREAM_ORPHAN;
	unlink_locked(s);
	atomic_store_explicit(&s->state, VGPU_STREAM_TAKEN, memory_order_release);
	s->taken = list;
	return s;
}

struct vgpu_stream *vgpu_streams_take(CUstream handle)
{
	struct vgpu_stream_key k;
	struct vgpu_stream *s = NULL;

	if (!key_of(handle, &k))
		return NULL;
	pthread_mutex_lock(&table.lock);
	s = lookup_locked(&k);
	if (s)
		take_locked(s, NULL);
	pthread_mutex_unlock(&table.lock);
	return s;
}

/* Those in a context, or if it is not NULL of a green one. */
static struct vgpu_stream *take_all(CUcontext context, CUgreenCtx green)
{
	struct vgpu_stream *list = NULL;

	pthread_mutex_lock(&table.lock);
	for (struct chunk *c = atomic_load_explicit(&table.chunks, memory_order_acquire); c;
	     c = atomic_load_explicit(&c->next, memory_order_relaxed)) {
		for (int i = 0; i < CHUNK; i++) {
			struct vgpu_stream *s = &c->records[i];
			int state = atomic_load_explicit(&s->state, memory_order_relaxed);

			if (state != VGPU_STREAM_LIVE && state != VGPU_STREAM_ORPHAN)
				continue;
			if ((context && atomic_load_explicit(&s->context, memory_order_relaxed) == context) ||
			    (green && vgpu_stream_of_green(s, green)))
				list = take_locked(s, list);
		}
	}
	pthread_mutex_unlock(&table.lock);
	return list;
}

struct vgpu_stream *vgpu_streams_take_context(CUcontext context)
{
	return take_all(context, NULL);
}

struct vgpu_stream *vgpu_streams_take_green(CUgreenCtx green, CUcontext context)
{
	return take_all(context, green);
}

bool vgpu_stream_of_green(struct vgpu_stream *s, CUgreenCtx green)
{
	return atomic_load_explicit(&s->state, memory_order_acquire) == VGPU_STREAM_LIVE &&
	       atomic_load_explicit(&s->green, memory_order_relaxed) == green;
}

void vgpu_streams_ask_green(void)
{
	/* Relaxed: whoever is told of the green context's streams is told of it after this. */
	atomic_store_explicit(&table.ask_green, true, memory_order_relaxed);
}

void vgpu_streams_gone(struct vgpu_stream *taken, bool complete)
{
	struct vgpu_stream *s;

	pthread_mutex_lock(&table.lock);
	while ((s = taken)) {
		taken = s->taken;
		vgpu_capture_over(s);
		if (complete) {
			vgpu_stream_done(s, vgpu_stream_submitted(s));
			free_locked(s); /* its events went with the context */
			continue;
		}
		/* A complete one too: its events are destroyed where the fence is held. */
		atomic_store_explicit(&s->state, VGPU_STREAM_ORPHAN, memory_order_release);
		if (!vgpu_stream_busy(s) && !atomic_load_explicit(&s->probe, memory_order_relaxed) && vgpu_window_empty(s))
			free_locked(s);
	}
	pthread_mutex_unlock(&table.lock);
}

/* Another thread used the stream meanwhile, and made a record of its own: the
 * old one ends as if its stream was gone. */
static void replaced(struct vgpu_stream *s)
{
	if (vgpu_stream_busy(s) && s->was.handle != CU_STREAM_PER_THREAD)
		vgpu_probe(s, s->was.handle);
	atomic_store_explicit(&s->state, VGPU_STREAM_ORPHAN, memory_order_release);
}

void vgpu_streams_put_back(struct vgpu_stream *taken)
{
	struct vgpu_stream *s, *now, *old = NULL;

	pthread_mutex_lock(&table.lock);
	while ((s = taken)) {
		taken = s->taken;
		now = s->was_orphan ? NULL : lookup_locked(&s->was);
		if (s->was_orphan) {
			atomic_store_explicit(&s->state, VGPU_STREAM_ORPHAN, memory_order_release);
		} else if (!now) {
			link_locked(s, &s->was);
		} else {
			if (atomic_load_explicit(&s->capturing, memory_order_relaxed) &&
			    !atomic_exchange_explicit(&now->capturing, true, memory_order_acq_rel))
				atomic_store_explicit(&s->capturing, false, memory_order_relaxed);
			vgpu_capture_over(s);
			s->taken = old;
			old = s;
		}
	}
	pthread_mutex_unlock(&table.lock);
	for (s = old; s; s = now) {
		now = s->taken;
		replaced(s);
	}
}

void vgpu_stream_recycle(struct vgpu_stream *s)
{
	pthread_mutex_lock(&table.lock);
	free_locked(s);
	pthread_mutex_unlock(&table.lock);
}

void vgpu_streams_each(bool (*visit)(struct vgpu_stream *s, void *arg), void *arg)
{
	for (struct chunk *c = atomic_load_explicit(&table.chunks, memory_order_acquire); c;
	     c = atomic_load_explicit(&c->next, memory_order_relaxed))
		for (int i = 0; i < CHUNK; i++)
			if (atomic_load_explicit(&c->records[i].state, memory_order_acquire) != VGPU_STREAM_FREE &&
			    !visit(&c->records[i], arg))
				return;
}

uint64_t vgpu_streams_completed(void *arg)
{
	uint64_t sum = 0;

	(void)arg;
	/* Free records too: what their former streams completed must not go down. */
	for (struct chunk *c = atomic_load_explicit(&table.chunks, memory_order_acquire); c;
	     c = atomic_load_explicit(&c->next, memory_order_relaxed))
		for (int i = 0; i < CHUNK; i++)
			sum += atomic_load_explicit(&c->records[i].completed, memory_order_relaxed);
	return sum;
}

bool vgpu_streams_lost(void)
{
	return atomic_load_explicit(&table.lost, memory_order_acquire);
}

void vgpu_stream_done(struct vgpu_stream *s, uint64_t number)
{
	uint64_t old = atomic_load_explicit(&s->completed, memory_order_relaxed);

	/* Release: pairs with the acquire in vgpu_stream_busy. */
	while (old < number && !atomic_compare_exchange_weak_explicit(&s->completed, &old, number, memory_order_release,
								      memory_order_relaxed))
		;
	if (atomic_load_explicit(&s->window.full, memory_order_relaxed) && !vgpu_stream_busy(s))
		vgpu_window_let_go(s);
}

/* A thread that had per-thread streams ends: nobody can name them any more. */
static void thread_ended(void *number)
{
	/* In a forked child another thread of the parent may have the lock for ever;
	 * at exit nobody asks any more. */
	if (!atomic_load_explicit(&vgpu_active, memory_order_relaxed))
		return;
	pthread_mutex_lock(&table.lock);
	for (struct chunk *c = atomic_load_explicit(&table.chunks, memory_order_acquire); c;
	     c = atomic_load_explicit(&c->next, memory_order_relaxed)) {
		for (int i = 0; i < CHUNK; i++) {
			struct vgpu_stream *s = &c->records[i];

			if (atomic_load_explicit(&s->state, memory_order_relaxed) != VGPU_STREAM_LIVE ||
			    atomic_load_explicit(&s->thread, memory_order_relaxed) != (uint64_t)(uintptr_t)number)
				continue;
			vgpu_capture_over(s);
			unlink_locked(s);
			atomic_store_explicit(&s->state, VGPU_STREAM_ORPHAN, memory_order_release);
		}
	}
	pthread_mutex_unlock(&table.lock);
}

void vgpu_streams_thread_key(void)
{
	if (!table.has_thread_key)
		table.has_thread_key = pthread_key_create(&table.thread_key, thread_ended) == 0;
}

uint64_t vgpu_thread_number(void)
{
	static _Atomic uint64_t last;

	if (!vgpu_thread.number)
		vgpu_thread.number = atomic_fetch_add_explicit(&last, 1, memory_order_relaxed) + 1;
	return vgpu_thread.number;
}
