/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How thread-local variables of ours are reached. initial-exec is the cheapest:
 * an offset from the thread pointer. glibc keeps room for libraries that come
 * by dlopen; musl keeps none and refuses them, so its build names another model.
 */
#ifndef VGPU_TLS_H
#define VGPU_TLS_H

#ifndef VGPU_TLS_MODEL
#define VGPU_TLS_MODEL "initial-exec"
#endif
#define VGPU_TLS _Thread_local __attribute__((tls_model(VGPU_TLS_MODEL)))

#endif
