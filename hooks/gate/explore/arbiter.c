/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vgpud's side, for one vGPU with one word per process against one other vGPU
 * that comes and goes. The functions are those of vgpu/node/words.go and
 * turn.go, with what the engine answers to their events. All operations are
 * sequentially consistent, as Go's are.
 */
#include "explore.h"

struct arbiter arbiter;

#define EACH(i) for (int i = 0; i < arbiter.processes; i++)

static uint64_t load(uint64_t *at)
{
	return ex_load(at, __ATOMIC_SEQ_CST, "arbiter");
}

static uint32_t state(int i)
{
	return VGPU_STATE(load(&pages[i].word));
}

static bool swap(int i, uint64_t from, uint32_t to, uint64_t epoch)
{
	return ex_cas(&pages[i].word, &from, VGPU_WORD(to, epoch), __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST, "arbiter");
}

static bool waiting(int i)
{
	return ex_load(&pages[i].waiting, __ATOMIC_SEQ_CST, "arbiter") > 0;
}

static bool any_waiting(void)
{
	EACH(i)
		if (waiting(i))
			return true;
	return false;
}

static void set_wanted(uint32_t value)
{
	EACH(i)
		ex_store(&pages[i].wanted, value, __ATOMIC_SEQ_CST, "arbiter");
}

static void ring(struct thread *t, unsigned option)
{
	(void)option;
	memory_send(t, (unsigned)t->op.arg);
	bells.nudge[t->op.arg] = true;
}

static void nudge(int i)
{
	if (arbiter.flaw != NO_NUDGE)
		step("nudge", NULL, ring, i);
}

static void wake(int i)
{
	if (arbiter.flaw != NO_WAKE)
		ex_wake(&pages[i].word);
}

static void open_word(int i)
{
	uint64_t w;
	uint32_t to;

	for (;;) {
		w = load(&pages[i].word);
		if (VGPU_STATE(w) != VGPU_CLOSED)
			return;
		to = waiting(i) ? VGPU_OPEN : VGPU_IDLE;
		if (swap(i, w, to, VGPU_EPOCH(w) + 1)) {
			wake(i);
			return;
		}
	}
}

static bool take_word(int i)
{
	uint64_t w = load(&pages[i].word);

	return VGPU_STATE(w) == VGPU_IDLE && swap(i, w, VGPU_CLOSED, VGPU_EPOCH(w));
}

static void revoke_word(int i)
{
	uint64_t w;

	for (;;) {
		w = load(&pages[i].word);
		if (VGPU_STATE(w) == VGPU_CLOSED || VGPU_STATE(w) == VGPU_DRAINING)
			return;
		if (swap(i, w, VGPU_STATE(w) == VGPU_IDLE ? VGPU_CLOSED : VGPU_DRAINING, VGPU_EPOCH(w)))
			return;
	}
}

static void grant(void)
{
	arbiter.phase = HOLDING;
	arbiter.pending = false;
	arbiter.taking = arbiter.other == WAITING;
	EACH(i) {
		ex_store(&pages[i].wanted, arbiter.taking, __ATOMIC_SEQ_CST, "arbiter");
		open_word(i);
	}
}

/* The turn ended; who waits longest is next. */
static void complete(void)
{
	arbiter.phase = FREE;
	arbiter.taking = false;
	turn_ended();
	arbiter.pending = any_waiting();
	if (arbiter.other == WAITING) {
		arbiter.other = GRANTED;
		other_granted();
	} else if (arbiter.pending) {
		grant();
	}
}

static void take(void)
{
	bool busy = false;
	uint32_t s;

	EACH(i) {
		s = state(i);
		if (s == VGPU_CLOSED || s == VGPU_IDLE)
			continue;
		busy = true;
		nudge(i);
	}
	if (busy)
		return;
	EACH(i) {
		if (take_word(i) || state(i) == VGPU_CLOSED)
			continue;
		for (int taken = 0; taken <= i; taken++)
			open_word(taken);
		nudge(i);
		return;
	}
	complete();
}

static void want(void)
{
	arbiter.taking = true;
	if (arbiter.flaw == READ_BEFORE_WANTED) {
		take();
		set_wanted(1);
		return;
	}
	set_wanted(1);
	take();
}

static void settle(void)
{
	switch (arbiter.phase) {
	case FREE:
		if (!any_waiting())
			return;
		arbiter.pending = true;
		if (arbiter.other == ABSENT)
			grant();
		return;
	case HOLDING:
		if (arbiter.taking)
			take();
		return;
	default:
		EACH(i)
			if (state(i) != VGPU_CLOSED && arbiter.flaw != BELIEVE_BELL)
				return;
		complete();
	}
}

static void revoke(void)
{
	arbiter.phase = DRAINING;
	arbiter.taking = false;
	EACH(i) {
		revoke_word(i);
		if (state(i) != VGPU_CLOSED)
			nudge(i);
	}
	settle();
}

static void resume_word(int i)
{
	uint64_t w;

	for (;;) {
		w = load(&pages[i].word);
		if (VGPU_STATE(w) != VGPU_DRAINING)
			break;
		if (swap(i, w, VGPU_OPEN, VGPU_EPOCH(w) + (arbiter.flaw != RESUME_SAME_EPOCH))) {
			wake(i);
			return;
		}
	}
	open_word(i);
}

/* A drain that may depend on work behind the gate: threads that wait there get
 * the turn back for a while. The engine still wants it. */
static void resume(void)
{
	uint32_t wanted = arbiter.other == WAITING;

	if (!any_waiting())
		return;
	arbiter.phase = HOLDING;
	EACH(i) {
		ex_store(&pages[i].wanted, wanted, __ATOMIC_SEQ_CST, "arbiter");
		resume_word(i);
	}
	settle();
	if (wanted && arbiter.phase == HOLDING)
		want();
}

/* ---- events ------------------------------------------------------------ */

enum event { RUNG, OTHER_COMES, OTHER_ENDS, QUANTUM_OVER, RESUMED, EVENTS };

static bool possible(enum event e)
{
	switch (e) {
	case RUNG:
		return bells.bell;
	case OTHER_COMES:
		return arbiter.other == ABSENT && arbiter.others;
	case OTHER_ENDS:
		return arbiter.other == GRANTED;
	case QUANTUM_OVER:
		return arbiter.phase == HOLDING && arbiter.other == WAITING && arbiter.quanta;
	default:
		return arbiter.phase == DRAINING && arbiter.resumes;
	}
}

static unsigned count_events(const struct op *op)
{
	unsigned n = 0;

	(void)op;
	for (enum event e = 0; e < EVENTS; e++)
		n += possible(e);
	return n;
}

static void next_event(struct thread *t, unsigned option)
{
	static const char *const name[] = { "bell", "another vGPU comes", "its turn ends", "quantum over", "resume" };

	for (enum event e = 0; e < EVENTS; e++) {
		if (!possible(e) || option--)
			continue;
		if (e == RUNG) {
			memory_receive(t, BELL);
			bells.bell = false;
		}
		t->result = e;
		trace("%-10s %s\n", thread_name(t), name[e]);
		return;
	}
}

void arbiter_main(int unused)
{
	(void)unused;
	for (;;) {
		step("event", count_events, next_event, 0);
		switch (self->result) {
		case RUNG:
			settle();
			break;
		case OTHER_COMES:
			arbiter.others--;
			arbiter.other = WAITING;
			if (arbiter.phase == HOLDING) {
				want();
			} else if (arbiter.phase == FREE) {
				arbiter.other = GRANTED;
				other_granted();
			}
			break;
		case OTHER_ENDS:
			arbiter.other = ABSENT;
			if (arbiter.pending)
				grant();
			break;
		case QUANTUM_OVER:
			arbiter.quanta--;
			revoke();
			break;
		case RESUMED:
			arbiter.resumes--;
			resume();
			break;
		}
	}
}
