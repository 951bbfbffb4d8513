/* SPDX-License-Identifier: Apache-2.0 */
/* Submitting, and completing in order. */
#include <stdlib.h>

#include "sim.h"

bool needs_gpu(const struct step *st)
{
	return st->kind == STEP_KERNEL || st->kind == STEP_COPY || st->kind == STEP_SET;
}

void step_release_locked(struct step *st)
{
	if (st->kind == STEP_KERNEL)
		free(st->launch.layout);
	else if (st->kind == STEP_COPY)
		free(st->copy.staged);
	else if (st->kind == STEP_RECORD)
		event_put_locked(st->event);
	st->kind = STEP_NOTHING;
}

bool op_ready_locked(const struct op *op)
{
	if (op->running)
		return false;
	for (uint32_t i = 0; i < op->n_after; i++)
		if (!point_done(&op->after[i]))
			return false;
	return true;
}

static void activate(struct stream *s)
{
	struct gpu *g = &sim.gpu[s->ctx->gpu];

	s->active_prev = g->active_last;
	s->active_next = NULL;
	if (g->active_last)
		g->active_last->active_next = s;
	else
		g->active_first = s;
	g->active_last = s;
}

static void deactivate(struct stream *s)
{
	struct gpu *g = &sim.gpu[s->ctx->gpu];

	if (s->active_prev)
		s->active_prev->active_next = s->active_next;
	else
		g->active_first = s->active_next;
	if (s->active_next)
		s->active_next->active_prev = s->active_prev;
	else
		g->active_last = s->active_prev;
}

void stream_rotate_locked(struct stream *s)
{
	deactivate(s);
	activate(s);
}

static void op_free(struct op *op)
{
	for (uint32_t i = 0; i < op->n_after; i++)
		stream_put_locked(op->after[i].stream);
	free(op->after);
	if (op->exec)
		exec_put_locked(op->exec);
	step_release_locked(&op->one);
	free(op);
}

static void op_complete(struct op *op)
{
	struct stream *s = op->stream;
	uint32_t gpu = s->ctx->gpu;

	/* First the log, then whoever waits: it must not be seen done before it has ended. */
	record_end(&sim.mc, op->record, clock_ns());
	if (op->class == SIM_WORK && --sim.gpu[gpu].in_flight == 0)
		machine_working(&sim.mc, gpu, false);
	s->completed = op->seq;
	s->first = op->next;
	deactivate(s);
	if (s->first)
		activate(s);
	else
		s->last = NULL;
	op_free(op);
	stream_put_locked(s);
	pthread_cond_broadcast(&sim.done);
}

void step_done_locked(struct op *op)
{
	op->running = false;
	op->begun = false;
	op->progress_ns = 0;
	if (++op->at >= op->n_steps)
		op_complete(op);
}

static bool value_there(const struct step *st)
{
	const void *p = memory_at_locked(st->value.address, st->value.size);
	uint64_t v;

	if (!p)
		return true;
	/* acquire: what was written before the value is seen behind the wait */
	if (st->value.size == 8)
		v = atomic_load_explicit((const _Atomic uint64_t *)p, memory_order_acquire);
	else
		v = atomic_load_explicit((const _Atomic uint32_t *)p, memory_order_acquire);
	uint64_t w = st->value.value;
	switch (st->value.flags & 3) {
	case CU_STREAM_WAIT_VALUE_EQ:
		return v == w;
	case CU_STREAM_WAIT_VALUE_AND:
		return (v & w) != 0;
	case CU_STREAM_WAIT_VALUE_NOR:
		return ~(v | w) != 0;
	}
	return st->value.size == 8 ? (int64_t)(v - w) >= 0 : (int32_t)(uint32_t)(v - w) >= 0;
}

static void write_value(const struct step *st)
{
	void *p = memory_at_locked(st->value.address, st->value.size);

	/* release: who sees the value sees what came before it */
	if (p && st->value.size == 8)
		atomic_store_explicit((_Atomic uint64_t *)p, st->value.value, memory_order_release);
	else if (p)
		atomic_store_explicit((_Atomic uint32_t *)p, (uint32_t)st->value.value, memory_order_release);
}

/* One step without GPU time. False: it can not be done now. */
static bool order_step(struct op *op)
{
	struct step *st = &op->steps[op->at];
	uint64_t now = clock_ns();

	context_look_locked(op->stream->ctx);
	if (!op->logged_start)
		record_start(&sim.mc, op->record, now);
	op->logged_start = true;
	switch (st->kind) {
	case STEP_HOST:
		if (!op->stream->ctx->error || st->host.callback) {
			host_run_locked(op);
			return true;
		}
		break;
	case STEP_RECORD:
		event_record_done_locked(st->event, op);
		break;
	case STEP_FREE:
		memory_free_locked(st->address);
		break;
	case STEP_WRITE:
		write_value(st);
		break;
	case STEP_WAIT_VALUE:
		if (!op->stream->ctx->error && !value_there(st))
			return false;
		break;
	default:
		break;
	}
	step_done_locked(op);
	return true;
}

static bool advance_gpu(struct gpu *g)
{
	bool moved = false, again = true;

	while (again) {
		again = false;
		for (struct stream *s = g->active_first; s; s = s->active_next) {
			struct op *op = s->first;

			if (!op_ready_locked(op))
				continue;
			if (needs_gpu(&op->steps[op->at])) {
				pthread_cond_signal(&g->kick);
				continue;
			}
			if (order_step(op)) {
				moved = again = true;
				break; /* the list has changed */
			}
			g->polling = true;
			pthread_cond_signal(&g->kick);
		}
	}
	return moved;
}

/* Completion on one GPU may release work on another. */
void advance_locked(void)
{
	bool moved = true;

	while (moved) {
		moved = false;
		for (uint32_t g = 0; g < sim.mc.m->gpus; g++)
			if (sim.gpu[g].started)
				moved |= advance_gpu(&sim.gpu[g]);
	}
}

static bool add_after(struct op *op, struct stream *s, uint64_t seq)
{
	struct point *p;

	if (s == op->stream || s->completed >= seq)
		return true;
	p = realloc(op->after, (op->n_after + 1) * sizeof(*p));
	if (!p)
		return false;
	p[op->n_after++] = (struct point){ stream_ref(s), seq };
	op->after = p;
	return true;
}

static bool set_order(struct op *op, const struct submit *s)
{
	struct stream *own = op->stream;
	bool ok = true;

	if (own->legacy || s->behind_all) {
		for (struct stream *o = own->ctx->streams; o && ok; o = o->next)
			if (s->behind_all || !(o->flags & CU_STREAM_NON_BLOCKING))
				ok = add_after(op, o, o->submitted);
	} else if (!(own->flags & CU_STREAM_NON_BLOCKING)) {
		ok = add_after(op, own->ctx->legacy, own->ctx->legacy->submitted);
	}
	if (ok && s->event && s->event->at.stream)
		ok = add_after(op, s->event->at.stream, s->event->at.seq);
	if (ok && s->exec && s->exec->last.stream)
		ok = add_after(op, s->exec->last.stream, s->exec->last.seq);
	return ok;
}

static struct op *op_new(const struct submit *s)
{
	struct op *op = calloc(1, sizeof(*op));

	if (!op)
		return NULL;
	op->stream = s->stream;
	op->class = s->class;
	if (s->exec) {
		op->exec = s->exec;
		s->exec->refs++;
		op->steps = s->exec->steps;
		op->n_steps = s->exec->n_steps;
	} else {
		op->one = s->step;
		op->steps = &op->one;
		op->n_steps = 1;
	}
	if (!set_order(op, s)) {
		op->one.kind = STEP_NOTHING; /* the caller releases the step */
		op_free(op);
		return NULL;
	}
	return op;
}

static void append(struct op *op)
{
	struct stream *s = stream_ref(op->stream);

	op->seq = ++s->submitted;
	if (s->last)
		s->last->next = op;
	else
		s->first = op;
	s->last = op;
	if (s->first == op)
		activate(s);
}

/* Moves a point, with its reference, to a new place. */
static void set_point(struct point *p, struct stream *s, uint64_t seq)
{
	struct stream *old = p->stream;

	*p = (struct point){ stream_ref(s), seq };
	if (old)
		stream_put_locked(old);
}

CUresult submit_refuse_locked(const struct submit *s, CUresult r)
{
	struct step st = s->step;

	step_release_locked(&st);
	return r;
}

static CUresult submit_to(const struct submit *s, uint64_t *seq)
{
	struct stream *st = s->stream;
	struct context *ctx = st->ctx;
	struct gpu *g = &sim.gpu[ctx->gpu];
	CUresult r = CUDA_SUCCESS;

	if (st->legacy)
		r = capture_legacy_locked(ctx);
	if (!r && s->event && !st->capture && capture_event_locked(s->event))
		r = capture_join_locked(st, s->event);
	if (r)
		return submit_refuse_locked(s, r);
	if (st->capture)
		return capture_add_locked(s);

	while (st->submitted - st->completed >= QUEUE_LIMIT)
		pthread_cond_wait(&sim.done, &sim.lock);
	if (ctx->destroyed || ctx->error)
		return submit_refuse_locked(s, ctx->destroyed ? CUDA_ERROR_CONTEXT_IS_DESTROYED : ctx->error);
	struct op *op = op_new(s);
	if (!op)
		return submit_refuse_locked(s, CUDA_ERROR_OUT_OF_MEMORY);
	if (s->class == SIM_WORK) {
		/* A dead process must not seem to be at work when ours is submitted. */
		machine_bury_workers(&sim.mc, ctx->gpu);
		if (g->in_flight++ == 0)
			machine_working(&sim.mc, ctx->gpu, true);
	}
	op->record = record_submit(&sim.mc, &(struct submission){
		.gpu = ctx->gpu, .class = s->class, .context = ctx->id, .stream = st->legacy ? 0 : st->id,
		.name = s->name, .detail = s->detail }, clock_ns());
	append(op);
	*seq = op->seq;
	/* Before anything runs: the operation may be over when submit returns. */
	if (s->step.kind == STEP_RECORD) {
		struct event *e = s->step.event;

		set_point(&e->at, st, op->seq);
		e->recorded = true;
		e->capture_id = 0;
	}
	if (s->exec)
		set_point(&s->exec->last, st, op->seq);
	if (needs_gpu(&op->steps[0]))
		pthread_cond_signal(&g->kick);
	else
		advance_locked();
	return CUDA_SUCCESS;
}

CUresult submit_locked(const struct submit *s, uint64_t *seq)
{
	uint64_t place = 0;
	CUresult r;

	/* Others may destroy the stream while we wait for room in it. */
	stream_ref(s->stream);
	r = submit_to(s, &place);
	stream_put_locked(s->stream);
	if (seq)
		*seq = place;
	return r;
}
