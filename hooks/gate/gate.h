/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The client's side of the protocol: the gate that every submission of work
 * passes, and the library's own thread behind it. It knows no GPU API; the
 * layer above (hooks/driver, hooks/opencl) tells it what is in flight.
 *
 * Duties of the layer above:
 *   - vgpu_gate_start once, before its first submission, and never in a forked
 *     child of a process that already had a gate (see vgpu_gate_forked);
 *   - around every submission: vgpu_gate_enter, submit, record what is now in
 *     flight, vgpu_gate_leave, in this order and on one thread; a signal handler
 *     that submits while its thread is in vgpu_gate_leave may go uncounted, no
 *     more than that;
 *   - vgpu_gate_complete whenever it learns for free (a synchronising call
 *     returned) that nothing may be in flight any more;
 *   - to keep what is in flight within vgpu_gate_bound_us; it waits for that before
 *     it enters the gate, never inside;
 *   - never vgpu_gate_enter for a call that is captured into a graph, or for one
 *     from inside the driver; in a host callback only if may_wait knows it.
 */
#ifndef VGPU_GATE_H
#define VGPU_GATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct vgpu_gate_ops {
	/* Is anything in flight? Cheap, lock-free, no driver call: called by
	 * any thread, after it has seen the gate empty. */
	bool (*in_flight)(void *arg);
	/* As in_flight, but first ask the driver about everything not known to
	 * be complete. Called by the library's thread only, and only while
	 * somebody else wants the GPU or a turn is being drained. */
	bool (*poll)(void *arg);
	/* How much work is known to be complete, in any unit; only rises. No
	 * driver call. Called by the library's thread in a drain, to tell one
	 * that gets on from one that does not. NULL: nobody can tell. */
	uint64_t (*completed)(void *arg);
	/* May this thread wait? Called by a thread that finds the gate closed,
	 * outside the gate and before it counts as waiting; not by the library's
	 * thread. If not, it passes: its call is one that nothing comes of.
	 * NULL: all may. */
	bool (*may_wait)(void *arg);
	/* Called once on the library's thread before it does anything else. */
	void (*thread_start)(void *arg);
	void *arg;
};

/* What came back from HELLO or BIND when it failed; text is for people. */
struct vgpu_gate_error {
	uint32_t code;             /* enum vgpu_code, or 0 when errno says it */
	int      errnum;
	char     text[256];
};

/* Connects to DIR/sock, says HELLO, maps the page, starts the library's
 * thread. Waits while vgpud is away. 0, or -1 with *err. Not thread-safe; call
 * it under a once. */
int vgpu_gate_start(const char *dir, const struct vgpu_gate_ops *ops, struct vgpu_gate_error *err);

/* Asks vgpud to bind this vGPU; fills at most max raw UUIDs. The number of
 * GPUs, or -1 with *err. Thread-safe. */
int vgpu_gate_bind(uint8_t (*uuid)[16], int max, struct vgpu_gate_error *err);

/* vgpu_gate_enter and vgpu_gate_leave: inlined. */
#include "slots.h"

/* Nothing seems to be in flight: let the turn become idle if that is so. */
void vgpu_gate_complete(void);

/* How much work may be in flight now, in microseconds of it; 0: there is no gate,
 * and no bound. Whether that is what a drain may take, since somebody waits or is
 * expected. Cheap; both change at any time. */
uint32_t vgpu_gate_bound_us(bool *budget);

/* A thread that waits for the bound is about to submit, before until_ns of
 * CLOCK_MONOTONIC: so long the turn does not become idle. 0: it waits no more. */
void vgpu_gate_comes(uint64_t until_ns);

/*
 * The memory ledger. gpu is an index into what vgpu_gate_bind returned. None of
 * these is called on the library's thread or inside the gate: the first and the
 * third may wait for vgpud.
 */
/* Before memory is allocated. 0: bytes of it may be; -1: they may not, for want
 * of memory, or as the vGPU was removed. */
int vgpu_gate_charge(unsigned gpu, uint64_t bytes);
/* After it was freed: as much as was charged. Never waits. */
void vgpu_gate_refund(unsigned gpu, uint64_t bytes);
/* The vGPU's limit on this GPU, and what is used of it: by all its processes, and
 * by other vGPUs that share it, with what the driver itself uses as it is now. used
 * may be NULL. -1 if neither is known. */
int vgpu_gate_memory(unsigned gpu, uint64_t *limit, uint64_t *used);
/* A context or module was made or has ended: what the driver itself uses is not
 * what it was. Never waits. */
void vgpu_gate_memory_changed(unsigned gpu);

/* Stops the library's thread; the gate stays as it is. For atexit. */
void vgpu_gate_stop(void);

/* True in a forked child of a process that had a gate: it must not submit. */
bool vgpu_gate_forked(void);

/* Tells vgpud about what could not be gated (see VGPU_STATS): counts so far.
 * Told again to a vgpud that was restarted. */
void vgpu_gate_stats(uint64_t unhooked, uint64_t unknown);

#endif
