/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuInit: where a process becomes a client. Nothing of ours runs before it, and
 * a process that never calls it opens no socket and starts no thread.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"
#include "memory.h"

atomic_bool vgpu_active;
VGPU_TLS struct vgpu_thread vgpu_thread;

/* Written under the lock, and by the child of a fork. */
static struct {
	pthread_mutex_t lock;
	bool prepared;             /* fork and exit handlers stand */
	bool started;              /* there is a gate */
	bool refused;              /* there will be none */
	bool initialised;          /* the real cuInit succeeded */
	bool said;
	bool child;                /* of a process that called cuInit before it forked */
} init = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void in_child(void)
{
	atomic_store_explicit(&vgpu_active, false, memory_order_relaxed);
	init.child = true;
	pthread_mutex_init(&init.lock, NULL);
}

static void at_exit(void)
{
	if (init.child)
		return;
	/* From here on nobody drains, and the driver is about to be torn down:
	 * calls of other threads and of later handlers go straight to it. */
	atomic_store_explicit(&vgpu_active, false, memory_order_relaxed);
	vgpu_gate_stop();
}

static CUresult refuse(const struct vgpu_gate_error *err)
{
	if (!init.said)
		fprintf(stderr, "vgpu: this process gets no GPU: %s\n", err->text);
	init.said = true;
	return err->code == VGPU_ERR_NO_GPU ? CUDA_ERROR_NO_DEVICE : CUDA_ERROR_SYSTEM_NOT_READY;
}

/* The real cuInit, with the bound GPUs as the only visible ones. Ordinals are
 * then the driver's own, and nothing needs to be translated. */
static CUresult init_with(__typeof__(&cuInit) real, unsigned int flags, const uint8_t (*uuid)[16], int n)
{
	const char *own = vgpu_environment_own();
	char value[VGPU_UUIDS * 42 + 1];
	struct vgpu_environment *e;
	CUresult r;

	vgpu_visible(own, uuid, n, value, sizeof(value));
	e = vgpu_environment_show(value);
	if (!e)
		return CUDA_ERROR_OUT_OF_MEMORY;
	vgpu_thread.nested++;
	r = real(flags);
	vgpu_thread.nested--;
	vgpu_environment_restore(e, own);
	return r;
}

static CUresult first_init(__typeof__(&cuInit) real, unsigned int flags)
{
	static const struct vgpu_gate_ops ops = {
		.in_flight = vgpu_in_flight,
		.poll = vgpu_poll,
		.completed = vgpu_streams_completed,
		.may_wait = vgpu_may_wait,
	};
	struct vgpu_gate_error err = { 0 };
	uint8_t uuid[VGPU_UUIDS][16];
	CUresult r;
	int n;

	if (init.refused)
		return CUDA_ERROR_SYSTEM_NOT_READY;
	if (!init.prepared) {
		if (pthread_atfork(NULL, NULL, in_child) != 0)
			return CUDA_ERROR_OUT_OF_MEMORY;
		vgpu_streams_thread_key();
		init.prepared = true;
	}
	if (!init.started) {
		if (vgpu_gate_start(VGPU_DIR, &ops, &err) != 0) {
			init.refused = true;
			return refuse(&err);
		}
		init.started = true;
	}
	n = vgpu_gate_bind(uuid, VGPU_UUIDS, &err);
	if (n < 0)
		r = refuse(&err); /* a later cuInit asks again */
	else
		r = init_with(real, flags, uuid, n);
	/* After the real cuInit: exit handlers run in the opposite order, so the
	 * library's thread has ended before the driver is torn down. */
	if (r == CUDA_SUCCESS) {
		if (atexit(at_exit) != 0)
			return CUDA_ERROR_OUT_OF_MEMORY;
		vgpu_devices_find(uuid, n);
		init.initialised = true;
		atomic_store_explicit(&vgpu_active, true, memory_order_release);
		vgpu_procaddr_report();
	}
	return r;
}

CUresult vgpu_init(__typeof__(&cuInit) real, const void *caller, unsigned int flags)
{
	CUresult r;
	int cancel;

	if (vgpu_thread.nested > 0 || vgpu_in_real(caller))
		return real(flags);
	/* A forked child has no gate. The real driver refuses to work there, if
	 * it worked in the parent; if it did not, nothing else would keep the
	 * child from the whole GPU. */
	if (init.child)
		return init.initialised ? real(flags) : CUDA_ERROR_SYSTEM_NOT_READY;
	/* Now, and not when it is first needed: the library's thread must not wait
	 * for the loader's lock, which a constructor that waits at the gate holds.
	 * Before our lock: a constructor may be waiting for that. */
	vgpu_resolve_all();
	/* It may wait for long, with locks held that a thread which is cancelled
	 * there would keep. */
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
	pthread_mutex_lock(&init.lock);
	r = init.initialised ? real(flags) : first_init(real, flags);
	pthread_mutex_unlock(&init.lock);
	pthread_setcancelstate(cancel, &cancel);
	return r;
}
