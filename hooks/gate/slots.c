/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The slots of the threads that submit: chunks that are only ever appended, so
 * that whoever looks at them needs no lock. Nor does a thread that takes one: it
 * may be a signal handler, a constructor under the loader's lock, or come while
 * another thread waits at the gate.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/mman.h>

#include "internal.h"

VGPU_TLS struct vgpu_gate_thread vgpu_gate_thread;

/* The chunk behind the last one: this thread's or that of a quicker one. Not
 * from malloc, which a signal handler may have interrupted. NULL: no memory. */
static struct vgpu_chunk *append(struct vgpu_chunk *last)
{
	struct vgpu_chunk *c = mmap(NULL, sizeof(*c), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct vgpu_chunk *there;

	if (c == MAP_FAILED)
		return NULL;
	there = chunk_append(&last->next, c);
	if (there) {
		munmap(c, sizeof(*c));
		return there;
	}
	return c;
}

/* The first slot that is free, so that few are to be looked at. */
static struct vgpu_slot *take_free(void)
{
	struct vgpu_chunk *c = &vgpu_gate.slots, *next;
	uint32_t n = 0;

	for (;;) {
		for (int i = 0; i < VGPU_SLOTS; i++) {
			n++;
			if (!slot_take(&c->slot[i].taken))
				continue;
			slots_reach(&vgpu_gate.slots_used, n);
			return &c->slot[i];
		}
		next = chunk_next(&c->next);
		if (!next)
			next = append(c);
		if (!next)
			return NULL;
		c = next;
	}
}

void vgpu_slot_get(void)
{
	struct vgpu_gate_thread *t = &vgpu_gate_thread;
	struct vgpu_slot *s;

	/* First: a signal handler that submits meanwhile must not take a slot,
	 * which this thread would then leave instead of its own. */
	t->shared = true;
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	s = vgpu_gate.has_slot_key ? take_free() : NULL;
	if (!s)
		return;
	s->word = &vgpu_gate.page->word;
	if (pthread_setspecific(vgpu_gate.slot_key, s) != 0) {
		slot_free(&s->taken);
		return;
	}
	t->slot = s;
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	t->shared = false;
}

/* The thread ends. What it still submits, in destructors that come later, goes
 * by the shared count. */
static void thread_ended(void *slot)
{
	struct vgpu_gate_thread *t = &vgpu_gate_thread;
	struct vgpu_slot *s = slot;

	t->shared = true;
	__atomic_signal_fence(__ATOMIC_SEQ_CST);
	t->slot = NULL;
	if (!vgpu_gate.page)
		return;
	/* It was cancelled while it waited. */
	if (t->counted) {
		t->counted = false;
		waiting_lower(&vgpu_gate.page->waiting);
	}
	/* Else it ended within the driver: nobody knows what it submitted, so it
	 * counts as inside for ever. */
	if (slot_empty(&s->inside))
		slot_free(&s->taken);
}

void vgpu_slots_start(void)
{
	vgpu_gate.has_slot_key = pthread_key_create(&vgpu_gate.slot_key, thread_ended) == 0;
}

/* Not one look but many, one after the other. That is enough where the word was
 * CLOSING or DRAINING before: whoever counts in after it was looked at sees that. */
bool vgpu_slots_empty(void)
{
	uint32_t n = slots_used(&vgpu_gate.slots_used);

	if (!count_empty(&vgpu_gate.shared))
		return false;
	for (struct vgpu_chunk *c = &vgpu_gate.slots; n; c = chunk_next(&c->next))
		for (int i = 0; i < VGPU_SLOTS && n; i++, n--)
			if (!slot_empty(&c->slot[i].inside))
				return false;
	return true;
}

uint64_t vgpu_slots_submitted(void)
{
	uint64_t sum = count_submitted(&vgpu_gate.shared);
	uint32_t n = slots_used(&vgpu_gate.slots_used);

	for (struct vgpu_chunk *c = &vgpu_gate.slots; n; c = chunk_next(&c->next))
		for (int i = 0; i < VGPU_SLOTS && n; i++, n--)
			sum += stat_load(&c->slot[i].submitted);
	return sum;
}
