/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the OpenCL layer share. The ICD loader puts the layer between a
 * program and every implementation; vgpu_next is what comes behind it.
 *
 * Work is gated when it is enqueued. Enqueued work that can not run yet, since a user
 * event that it waits for was not set, is *held*: it is not in flight, whatever is
 * enqueued behind it, and becomes so where the event is set, which is gated for it
 * (held.c). Everything else that was enqueued is in flight until its event says that
 * it is over (queue.c).
 *
 * No call of vgpu_next is made with vgpu_lock held: an implementation may call the
 * program back from within.
 */
#ifndef VGPU_OPENCL_H
#define VGPU_OPENCL_H

#define CL_USE_DEPRECATED_OPENCL_1_0_APIS
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#define CL_USE_DEPRECATED_OPENCL_2_0_APIS
#define CL_USE_DEPRECATED_OPENCL_2_1_APIS
#define CL_USE_DEPRECATED_OPENCL_2_2_APIS

#include <CL/cl_layer.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "../gate/client.h"
#include "../gate/gate.h"
#include "../gate/hash.h"
#include "../gate/tls.h"
#include "../gate/wire.h"

/* ---- the layer (layer.c) -------------------------------------------------- */

/* Written once, by clInitLayer. */
extern cl_icd_dispatch vgpu_next;

struct vgpu_cl_thread {
	unsigned callback;         /* inside a function that the implementation called */
	unsigned nested;           /* inside vgpu_next: what it calls of ours passes */
	bool passed;               /* it came to a closed gate, and may not wait */
};
extern VGPU_TLS struct vgpu_cl_thread vgpu_cl_thread;

/* Guards queues, what is in flight and what is held. */
extern pthread_mutex_t vgpu_lock;

static inline bool vgpu_managed(void)
{
	return atomic_load_explicit(&vgpu_active, memory_order_relaxed) && vgpu_cl_thread.nested == 0;
}

/* ---- devices (device.c) --------------------------------------------------- */

/* What is not one of the vGPU's GPUs. */
#define VGPU_OTHER  (-1)       /* none of the node's GPUs at all: nothing of ours */
#define VGPU_HIDDEN (-2)       /* a GPU that this vGPU is not bound to */

/* The index of a device's GPU in what was bound, or one of these. May bind. */
int vgpu_device_gpu(cl_device_id device);
/* The GPUs of a context, as bits. */
uint32_t vgpu_context_gpus(cl_context context);
/* The limit on memory of one GPU; UINT64_MAX if it is not known. */
uint64_t vgpu_memory_limit(int gpu);

/* ---- queues and what is in flight (queue.c) ------------------------------- */

/* A command that was enqueued and can run, by its event. */
struct vgpu_flight {
	cl_event event;            /* a reference of ours */
	uint64_t number;           /* all of the queue up to this number are over when it is, if the queue is in order */
	unsigned uses;             /* threads that ask for its event */
	bool gone;                 /* out of its list */
	struct vgpu_flight *next;
};

struct vgpu_queue {
	struct vgpu_node node;     /* by the handle, until that is released */
	cl_command_queue handle;   /* NULL then: what is in flight stays watched */
	cl_context context;
	int gpu;
	bool in_order;
	unsigned uses;             /* threads that look at it without the lock */
	uint64_t submitted, completed;
	bool unflushed;            /* perhaps: since the last flush of ours */
	struct vgpu_flight *first, *last;
	uint64_t marked;           /* in order: the number of the newest flight that stays */
	struct vgpu_held *held;    /* in order: the newest that is held; else the newest such barrier */
	/* The bound. */
	uint64_t unit_ns;          /* what a command takes; 0: not known */
	uint64_t seen_ns, seen;    /* a look at it while it was busy, and what was complete then */
	unsigned stalls;           /* how often the allowance was doubled */
	struct vgpu_queue *next;
};

/* The record of a queue whose device is a GPU of ours, with one use more; NULL: no
 * such queue. */
struct vgpu_queue *vgpu_queue_use(cl_command_queue handle);
void vgpu_queue_unuse(struct vgpu_queue *q);
/* With the lock: f is in flight on q. What it makes superfluous goes to trash. */
void vgpu_queue_add(struct vgpu_queue *q, struct vgpu_flight *f, cl_event event, struct vgpu_flight **trash);
/* Without it: releases the events of a list, and frees it. */
void vgpu_flights_free(struct vgpu_flight *list);
/* Waits until q has room for more, or does not get on. Outside of the gate. */
void vgpu_queue_wait(struct vgpu_queue *q);
/* Asks what of q is over. */
void vgpu_queue_look(struct vgpu_queue *q);
/* Everything up to number is over: a waiting call returned. */
void vgpu_queue_done(struct vgpu_queue *q, uint64_t number);
uint64_t vgpu_queue_submitted(struct vgpu_queue *q);
/* The handle is about to be released, and may be given out again. With the fence. */
void vgpu_queue_forget(cl_command_queue handle);
/* Something was seen to be over: looks at all queues, and lets the turn end if
 * nothing is in flight. */
void vgpu_notify(void);
/* References of ours to an event. */
cl_uint vgpu_queue_references(cl_event event);

/* Between the library's thread (exclusive, never waits), which uses the handles of
 * queues, and calls that release them (shared). */
void vgpu_fence_share(void);
void vgpu_fence_release(void);

extern const struct vgpu_gate_ops vgpu_ops;

/* ---- what is held (held.c) ------------------------------------------------ */

/* A user event that was not set, or a command that depends on one. */
struct vgpu_held {
	struct vgpu_node node;     /* by the event, or by itself */
	cl_event event;            /* a reference of ours; NULL: it has none */
	bool user;
	bool resolved;
	bool setting;              /* user: its status is on its way (late.c) */
	struct vgpu_queue *queue;  /* of a command, and a use of it */
	struct vgpu_flight *flight; /* of work: what it becomes; NULL: an ordering command */
	struct vgpu_held *next;    /* commands, as they were enqueued */
	unsigned n;
	struct vgpu_held *on[];    /* what it depends on; NULL where that is resolved */
};

enum vgpu_order { VGPU_WORK, VGPU_MARKER, VGPU_BARRIER };

/* With the lock: on what a command depends that is not resolved; their number. out
 * has vgpu_held_room entries. */
unsigned vgpu_held_room(cl_uint n);
unsigned vgpu_held_on(struct vgpu_held **out, struct vgpu_queue *q, enum vgpu_order order, cl_uint n, const cl_event *wait);
/* With the lock: a command is held that was just enqueued. */
void vgpu_held_add(struct vgpu_held *h, enum vgpu_order order, cl_event event);
/* A user event that was made, with a reference of ours to it. False: no memory. */
bool vgpu_held_user(cl_event event);
/* With the lock. */
struct vgpu_held *vgpu_held_find(cl_event event);
bool vgpu_held_needed(const struct vgpu_held *user);
/* With the lock: a user event that nothing is held for goes out of the table. */
void vgpu_held_drop(struct vgpu_held *user);
/* Without it. */
void vgpu_held_free(struct vgpu_held *list);
/* Without it: a user event was set. What depended on nothing else is in flight then:
 * inside the gate. */
void vgpu_held_resolve(struct vgpu_held *user);

/* ---- what a callback may not wait for (late.c) ---------------------------- */

/* Sets a user event on a thread of its own, which waits at the gate. False: without
 * memory for that. */
bool vgpu_late_set(struct vgpu_held *user, cl_int status);

/* ---- commands (command.c) ------------------------------------------------- */

/* One call that enqueues. */
struct vgpu_command {
	enum vgpu_order order;
	struct vgpu_queue *queue;  /* NULL: not one of ours, and nothing is done */
	cl_uint n;                 /* the wait list that the implementation gets */
	const cl_event *wait;
	cl_event *event;           /* where it writes the event, NULL: nowhere */
	cl_event own;
	bool gated, wants;         /* wants: the program does the event */
	bool blocking;             /* the call returns when it is over */
	struct vgpu_held *late;    /* it waits for this event of ours: a callback may not wait at the gate */
	struct vgpu_flight *flight; /* allocated for it */
	cl_event *list;            /* the wait list with that event */
};

/* Before and after; other than CL_SUCCESS: the call fails. */
cl_int vgpu_command_begin(struct vgpu_command *c, enum vgpu_order order, cl_command_queue queue, cl_uint n, const cl_event *wait,
			  cl_event *event, cl_bool blocking);
cl_int vgpu_command_end(struct vgpu_command *c, cl_int r);

/* ---- the functions of the layer ------------------------------------------- */

typedef void (*vgpu_function)(void);
/* Puts hook_NAME before the implementations' function, if the loader knows it. */
#define VGPU_HOOK(name)                                                                                                 \
	do {                                                                                                            \
		_Static_assert(__builtin_types_compatible_p(__typeof__(&hook_##name), __typeof__(vgpu_next.name)), #name); \
		vgpu_hook(#name, offsetof(cl_icd_dispatch, name), (vgpu_function)hook_##name);                          \
	} while (0)
void vgpu_hook(const char *name, size_t at, vgpu_function hook);
void vgpu_device_hooks(void);
void vgpu_work_hooks(void);
void vgpu_sync_hooks(void);
void vgpu_callback_hooks(void);
void vgpu_charge_hooks(void);
/* Tells vgpud what was counted before there was a gate. */
void vgpu_lookups_report(void);

/* callback.c: for clEnqueueNativeKernel and clEnqueueSVMFree. */
struct vgpu_native {
	void(CL_CALLBACK *function)(void *);
	_Alignas(16) char args[];
};
void CL_CALLBACK vgpu_native_run(void *native);
struct vgpu_svm_free {
	void(CL_CALLBACK *function)(cl_command_queue, cl_uint, void **, void *);
	void *data;
};
void CL_CALLBACK vgpu_svm_free_run(cl_command_queue queue, cl_uint n, void **pointers, void *data);

/* charge.c: memory that clEnqueueSVMFree frees. */
void vgpu_svm_freed(cl_uint n, void *pointers[]);

#endif
