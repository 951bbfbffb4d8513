/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuInit: where a process becomes a client. Nothing of ours runs before it, and
 * a process that never calls it opens no socket and starts no thread.
 */
#define _GNU_SOURCE
#include "driver.h"
#include "memory.h"

VGPU_TLS struct vgpu_thread vgpu_thread;

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
	struct vgpu_gate_error err;
	uint8_t uuid[VGPU_UUIDS][16];
	CUresult r;
	int n;

	vgpu_streams_thread_key();
	n = vgpu_client_bind(&ops, uuid, &err);
	if (n < 0) /* a later cuInit asks again, unless all is refused */
		return err.code == VGPU_ERR_NO_GPU ? CUDA_ERROR_NO_DEVICE : CUDA_ERROR_SYSTEM_NOT_READY;
	r = init_with(real, flags, uuid, n);
	if (r == CUDA_SUCCESS) {
		vgpu_devices_find(uuid, n);
		if (!vgpu_client_begin())
			return CUDA_ERROR_OUT_OF_MEMORY;
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
	if (vgpu_client_child())
		return vgpu_client_began() ? real(flags) : CUDA_ERROR_SYSTEM_NOT_READY;
	/* Now, and not when it is first needed: the library's thread must not wait
	 * for the loader's lock, which a constructor that waits at the gate holds.
	 * Before our lock: a constructor may be waiting for that. */
	vgpu_resolve_all();
	vgpu_client_lock(&cancel);
	r = vgpu_client_began() ? real(flags) : first_init(real, flags);
	vgpu_client_unlock(cancel);
	return r;
}
