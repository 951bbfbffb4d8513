/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The engine: one thread for each GPU that the process uses. It runs one step
 * at a time; after a slice the next stream has its turn, and the next process.
 * A step's effect happens when it starts, its time passes after.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <sys/prctl.h>

#include "sim.h"

#define POLL_NS 200000 /* how often a value in memory is looked at */

static struct op *next_op(struct gpu *g)
{
	for (struct stream *s = g->active_first; s; s = s->active_next)
		if (op_ready_locked(s->first) && needs_gpu(&s->first->steps[s->first->at]))
			return s->first;
	return NULL;
}

static void give_turn(struct gpu *g, uint32_t gpu)
{
	if (!g->has_turn)
		return;
	g->has_turn = false;
	turn_pass(&sim.mc, gpu);
}

static void idle(struct gpu *g, uint32_t gpu)
{
	give_turn(g, gpu);
	if (!g->polling) {
		pthread_cond_wait(&g->kick, &sim.lock);
		return;
	}
	/* A value that a stream waits for changes without a call. */
	g->polling = false;
	unlock();
	clock_sleep_until(clock_ns() + POLL_NS, false);
	lock();
	advance_locked();
}

/* Lets the mutex go. Returns when the slice that begins now ends. */
static uint64_t take_turn(struct gpu *g, uint32_t gpu)
{
	bool other;

	unlock();
	other = turn_take(&sim.mc, gpu);
	if (other && sim.mc.m->switch_ns)
		clock_sleep_until(clock_ns() + sim.mc.m->switch_ns, true);
	lock();
	g->has_turn = true;
	return clock_ns() + sim.mc.m->slice_ns;
}

/*
 * What is managed of this process comes to the GPU before it computes: true if
 * that took time, without the mutex. Nobody may think that the turn is overdue.
 */
static bool swap(uint32_t gpu)
{
	uint64_t rate = sim.mc.m->swap_rate, moved = rate ? machine_swap(&sim.mc, gpu) : 0, now;

	if (!moved)
		return false;
	unlock();
	now = clock_ns();
	uint64_t until = now + (uint64_t)((double)moved / (double)rate * 1e9);

	atomic_store(&sim.mc.m->gpu[gpu].since_ns, until);
	clock_sleep_until(until, true);
	atomic_fetch_add_explicit(&sim.mc.m->gpu[gpu].busy_ns, until - now, memory_order_relaxed);
	lock();
	return true;
}

/* Runs the step until it is over or the slice is. Lets the mutex go. */
static void run_step(struct gpu *g, uint32_t gpu, struct op *op, uint64_t slice_end)
{
	struct context *ctx = op->stream->ctx;
	struct step *st = &op->steps[op->at];
	uint64_t now = clock_ns(), from = now, until;
	CUresult r = CUDA_SUCCESS;

	context_look_locked(ctx);
	bool dead = ctx->error != CUDA_SUCCESS, over = false;
	/* A step that only its slice interrupted has lost no time. */
	if (g->resume == op && now - g->resume_ns < slice_end - now)
		from = g->resume_ns;
	g->resume = NULL;
	if (!op->logged_start)
		record_start(&sim.mc, op->record, from);
	op->logged_start = true;
	op->running = true;
	unlock();
	if (!op->begun && !dead) {
		op->began_ns = from;
		r = step_run(ctx, st);
	}
	op->begun = true;
	if (r || dead) {
		until = from;
	} else {
		uint64_t left = st->duration_ns - op->progress_ns;

		bool ends = left <= slice_end - from;

		until = ends ? from + left : slice_end;
		clock_sleep_until(until, ends);
		/* One that spins until something happens is looked at once a slice. */
		over = st->duration_ns == ENDLESS && step_over(st);
		if (ends)
			step_ended(st, op->began_ns, clock_ns());
	}
	now = clock_ns();
	atomic_fetch_add_explicit(&sim.mc.m->gpu[gpu].busy_ns, now - from, memory_order_relaxed);
	lock();
	if (r)
		context_fail_locked(ctx, r);
	op->running = false;
	/* Only what the slice had in it counts: we may have been stopped meanwhile. */
	op->progress_ns += until - from;
	bool others = now >= slice_end && (turn_wanted(&sim.mc, gpu) || !turn_held(&sim.mc, gpu));
	if (r || dead || over || (st->duration_ns != ENDLESS && op->progress_ns >= st->duration_ns)) {
		step_done_locked(op);
	} else {
		stream_rotate_locked(op->stream);
		if (!others) {
			g->resume = op;
			g->resume_ns = until;
		}
	}
	advance_locked();
	if (others)
		give_turn(g, gpu);
}

static void *engine(void *arg)
{
	uint32_t gpu = (uint32_t)(uintptr_t)arg;
	struct gpu *g = &sim.gpu[gpu];
	uint64_t slice_end = 0;

	self.engine = true;
	self.gpu = gpu;
	prctl(PR_SET_NAME, "simgpu");
	prctl(PR_SET_TIMERSLACK, 1ul);
	lock();
	for (;;) {
		struct op *op = next_op(g);

		if (!op) {
			idle(g, gpu);
		} else if (!g->has_turn) {
			slice_end = take_turn(g, gpu);
		} else if (swap(gpu)) {
			slice_end = clock_ns() + sim.mc.m->slice_ns;
		} else {
			if (clock_ns() >= slice_end)
				slice_end = clock_ns() + sim.mc.m->slice_ns;
			run_step(g, gpu, op, slice_end);
		}
	}
	return NULL;
}

CUresult thread_start(pthread_t *t, void *(*run)(void *), void *arg)
{
	sigset_t all, old;
	int err;

	/* The program's signals are not ours to take. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	err = pthread_create(t, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return err ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

CUresult host_start_locked(void)
{
	static pthread_t host;
	static bool started;
	CUresult r = started ? CUDA_SUCCESS : thread_start(&host, host_thread, NULL);

	started |= r == CUDA_SUCCESS;
	return r;
}

CUresult engine_start_locked(uint32_t gpu)
{
	CUresult r = host_start_locked();

	if (r)
		return r;
	if (!sim.gpu[gpu].started)
		r = thread_start(&sim.gpu[gpu].thread, engine, (void *)(uintptr_t)gpu);
	if (!r)
		sim.gpu[gpu].started = true;
	return r;
}
