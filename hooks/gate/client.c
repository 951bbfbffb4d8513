/* SPDX-License-Identifier: Apache-2.0 */
/* How a process becomes a client. Nothing of ours runs before it, and a process that
 * never asks for a device opens no socket and starts no thread. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"
#include "wire.h"

atomic_bool vgpu_active;

/* Written under the lock, and by the child of a fork. */
static struct {
	pthread_mutex_t lock;
	bool prepared;             /* the fork handler stands */
	bool started;              /* there is a gate */
	bool refused;              /* there will be none */
	bool began;                /* the real driver initialised */
	bool said;
	bool child;                /* of a process that was prepared before it forked */
} client = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void in_child(void)
{
	atomic_store_explicit(&vgpu_active, false, memory_order_relaxed);
	client.child = true;
	pthread_mutex_init(&client.lock, NULL);
}

static void at_exit(void)
{
	if (client.child)
		return;
	/* From here on nobody drains, and the driver is about to be torn down:
	 * calls of other threads and of later handlers go straight to it. */
	atomic_store_explicit(&vgpu_active, false, memory_order_relaxed);
	vgpu_gate_stop();
}

void vgpu_client_lock(int *cancel)
{
	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, cancel);
	pthread_mutex_lock(&client.lock);
}

void vgpu_client_unlock(int cancel)
{
	pthread_mutex_unlock(&client.lock);
	pthread_setcancelstate(cancel, &cancel);
}

static int refuse(const struct vgpu_gate_error *err)
{
	if (!client.said)
		fprintf(stderr, "vgpu: this process gets no GPU: %s\n", err->text);
	client.said = true;
	return -1;
}

int vgpu_client_bind(const struct vgpu_gate_ops *ops, uint8_t (*uuid)[16], struct vgpu_gate_error *err)
{
	int n;

	memset(err, 0, sizeof(*err));
	if (client.refused)
		return -1;
	if (!client.prepared) {
		if (pthread_atfork(NULL, NULL, in_child) != 0) {
			snprintf(err->text, sizeof(err->text), "no memory for a fork handler");
			return refuse(err);
		}
		client.prepared = true;
	}
	if (!client.started) {
		if (vgpu_gate_start(VGPU_DIR, ops, err) != 0) {
			client.refused = true;
			return refuse(err);
		}
		client.started = true;
	}
	n = vgpu_gate_bind(uuid, VGPU_UUIDS, err);
	return n < 0 ? refuse(err) : n; /* the next call asks again */
}

bool vgpu_client_begin(void)
{
	if (atexit(at_exit) != 0)
		return false;
	client.began = true;
	atomic_store_explicit(&vgpu_active, true, memory_order_release);
	return true;
}

bool vgpu_client_began(void)
{
	return client.began;
}

bool vgpu_client_child(void)
{
	return client.child;
}
