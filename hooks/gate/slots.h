/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who is inside the gate: each thread says it in a slot of its own, which it
 * alone writes, so that a submission takes one locked operation and no line of
 * memory that other threads write. Whoever wants to know whether anybody is
 * inside looks at all slots (slots.c).
 *
 * The usual way through the gate is inlined into its callers: a function call on
 * each side costs as much as the locked operation.
 */
#ifndef VGPU_SLOTS_H
#define VGPU_SLOTS_H

#include <stdbool.h>
#include <stdint.h>

#include "atomic.h"
#include "tls.h"
#include "wire.h"

/* A line of its own. Never freed, and used by one thread after the other. */
struct vgpu_slot {
	_Alignas(64) uint64_t inside; /* how deep: a signal handler may submit, too */
	uint64_t submitted;        /* by all threads that used it */
	uint64_t *word;            /* the page's: a load less than by way of the page */
	uint32_t taken;
};

/* What the gate keeps for each thread; initial-exec, as the fast path reads it. */
struct vgpu_gate_thread {
	struct vgpu_slot *slot;    /* NULL: none yet, none any more, or no gate */
	bool shared;               /* without a slot: by the count that such threads share */
	bool counted;              /* this thread is in page->waiting */
	volatile bool closer;      /* this thread holds vgpu_gate.closing */
	volatile bool interrupted; /* ... and a signal handler undid its CLOSING */
};
extern VGPU_TLS struct vgpu_gate_thread vgpu_gate_thread;

#define VGPU_GATE_HOT static inline __attribute__((always_inline))

/* gate.c: what is not usual. in: the slot in which this thread counted in, NULL
 * if it did not yet. */
void vgpu_gate_enter_slow(struct vgpu_slot *in);
void vgpu_gate_leave_slow(void);

/* Returns once the gate is open, or the thread may not wait for that, and this
 * thread is counted in. No lock and no
 * system call while the grant is held. */
VGPU_GATE_HOT void vgpu_gate_enter(void)
{
#ifndef VGPU_NO_GATE
	struct vgpu_slot *s = vgpu_gate_thread.slot;

	if (__builtin_expect(s != NULL, 1)) {
		slot_in(&s->inside);
		if (__builtin_expect(VGPU_STATE(word_load(s->word)) == VGPU_OPEN, 1))
			return;
	}
	vgpu_gate_enter_slow(s);
#endif
}

/* Ends what vgpu_gate_enter began; what was submitted is recorded before. */
VGPU_GATE_HOT void vgpu_gate_leave(void)
{
	struct vgpu_slot *s = vgpu_gate_thread.slot;

	if (__builtin_expect(!s || vgpu_gate_thread.counted, 0)) {
		vgpu_gate_leave_slow();
		return;
	}
	stat_raise(&s->submitted, 1);
	slot_out(&s->inside);
}

#endif
