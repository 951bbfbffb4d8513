/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The life of a process as a client, the same under every API: it becomes one
 * when it first asks for a device, and is none any more in its exit handlers, or
 * in a forked child.
 */
#ifndef VGPU_CLIENT_H
#define VGPU_CLIENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "gate.h"

/* True from the end of vgpu_client_begin until the exit handlers run; false in a
 * forked child. Read relaxed on the fast path: a thread that uses the API learned in
 * some way that its first call returned, and that orders the two. */
extern atomic_bool vgpu_active;

/* Around what follows and the API's own initialisation: one thread at a time. A
 * thread is not cancelled there: it may wait for long, with locks held. */
void vgpu_client_lock(int *cancel);
void vgpu_client_unlock(int cancel);

/* With the lock: says HELLO, once, and asks for the GPUs of this vGPU. Their number,
 * or -1 with *err; why is told on stderr, once. A process that vgpud refused asks no
 * second time. */
int vgpu_client_bind(const struct vgpu_gate_ops *ops, uint8_t (*uuid)[16], struct vgpu_gate_error *err);

/* With the lock, after the real driver has initialised: exit handlers run in the
 * opposite order, so the library's thread has ended before the driver is torn down.
 * False without memory. */
bool vgpu_client_begin(void);
/* With the lock: whether it did. */
bool vgpu_client_began(void);

/* In a forked child of a process that had come as far as vgpu_client_bind: there is
 * no gate. */
bool vgpu_client_child(void);

#endif
