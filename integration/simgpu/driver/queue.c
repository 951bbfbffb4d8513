/* SPDX-License-Identifier: Apache-2.0 */
/* Submitting, and completing in order. */
#include <stdlib.h>

#include "graph.h"
#include "shared_event.h"

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
	else if (st->kind == STEP_RECORD || st->kind == STEP_WAIT_EVENT || st->kind == STEP_WAIT_SHARED)
		event_put_locked(st->event);
	else if (st->kind == STEP_GRAPH_ALLOC || st->kind == STEP_GRAPH_FREE)
		graph_memory_put_locked(st->memory);
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
	if (op->program)
		program_put_locked(op->program);
	step_release_locked(&op->one);
	free(op);
}

static void op_complete(struct op *op)
{
	struct stream *s = op->stream;
	uint32_t gpu = s->ctx->gpu;

	/* First the log, then whoever waits: it must not be seen done before it has ended. */
	if (op->last) {
		record_end(&sim.mc, op->record, clock_ns());
		if (op->class == SIM_WORK && --sim.gpu[gpu].in_flight == 0)
			machine_working(&sim.mc, gpu, false);
		if (op->program)
			graph_memory_end_locked(op->program);
	}
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
	case STEP_GRAPH_ALLOC:
		graph_memory_place_locked(st->memory);
		break;
	case STEP_GRAPH_FREE:
		graph_memory_drop_locked(st->memory);
		break;
	case STEP_WRITE:
		write_value(st);
		break;
	case STEP_WAIT_SHARED:
		if (!op->stream->ctx->error && !shared_event_is_done(st->event->shared, st->number))
			return false;
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
			if (s->behind_all ? !s->green || o->green == s->green : !(o->flags & CU_STREAM_NON_BLOCKING))
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

/* Moves a point, with its reference, to a new place. */
static void set_point(struct point *p, struct stream *s, uint64_t seq)
{
	struct stream *old = p->stream;

	*p = (struct point){ stream_ref(s), seq };
	if (old)
		stream_put_locked(old);
}

static void event_recorded(struct event *e, struct stream *s, uint64_t seq)
{
	set_point(&e->at, s, seq);
	e->recorded = true;
	e->capture_id = 0;
}

/*
 * The steps of a program from one on, up to where others may wait for it (a
 * record) or it for others (a wait): each of these is an operation of its own.
 */
static void take_part(struct op *op, struct program *p, uint32_t from)
{
	uint32_t end = from + 1;

	while (end < p->n && p->steps[end].kind != STEP_WAIT_EVENT && p->steps[end - 1].kind != STEP_RECORD)
		end++;
	p->refs++;
	op->program = p;
	op->steps = &p->steps[from];
	op->n_steps = end - from;
	op->first = from == 0;
	op->last = end == p->n;
}

/* What a part of a launch waits for, and who may wait for it. */
static void join_events(struct op *op)
{
	struct step *first = &op->steps[0], *last = &op->steps[op->n_steps - 1];

	if (first->kind == STEP_WAIT_EVENT && first->event->at.stream &&
	    !add_after(op, first->event->at.stream, first->event->at.seq))
		abort();
	if (last->kind == STEP_RECORD) {
		event_recorded(last->event, op->stream, op->stream->submitted + 1);
		if (last->event->shared)
			op->number = shared_event_record(last->event->shared);
	}
}

static struct op *op_new(const struct submit *s)
{
	struct op *op = calloc(1, sizeof(*op));

	if (!op)
		return NULL;
	op->stream = s->stream;
	op->class = s->class;
	op->first = true;
	op->last = true;
	if (s->exec) {
		take_part(op, s->exec->program, 0);
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

/* The other parts of a launch. Returns the place of the last. */
static uint64_t append_parts(struct op *op)
{
	uint32_t from = op->n_steps;

	while (!op->last) {
		struct op *next = calloc(1, sizeof(*next));

		if (!next)
			abort();
		next->stream = op->stream;
		next->class = op->class;
		next->record = op->record;
		next->logged_start = true;
		take_part(next, op->program, from);
		join_events(next);
		append(next);
		from += next->n_steps;
		op = next;
	}
	return op->seq;
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

	slow_locked(s->name, ctx->gpu);
	while (st->submitted - st->completed >= QUEUE_LIMIT)
		pthread_cond_wait(&sim.done, &sim.lock);
	if (ctx->destroyed || ctx->error)
		return submit_refuse_locked(s, ctx->destroyed ? CUDA_ERROR_CONTEXT_IS_DESTROYED : ctx->error);
	if (s->exec && (r = graph_memory_begin_locked(s->exec)))
		return r;
	struct op *op = op_new(s);
	if (!op && s->exec)
		graph_memory_end_locked(s->exec->program);
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
	/* Before anything runs: the operation may be over when submit returns. */
	join_events(op);
	append(op);
	*seq = s->exec ? append_parts(op) : op->seq;
	if (s->exec)
		set_point(&s->exec->last, st, *seq);
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
