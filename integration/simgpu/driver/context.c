/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: making and destroying them; the calls are in context_api.c. */
#include <stdlib.h>

#include "sim.h"

static const size_t default_limits[] = {
	[CU_LIMIT_STACK_SIZE] = 1024,
	[CU_LIMIT_PRINTF_FIFO_SIZE] = 1 << 20,
	[CU_LIMIT_MALLOC_HEAP_SIZE] = 8 << 20,
	[CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH] = 2,
	[CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT] = 2048,
	[CU_LIMIT_MAX_L2_FETCH_GRANULARITY] = 64,
};

bool device_ok(CUdevice dev)
{
	return dev >= 0 && dev < sim.n_devices;
}

/* Whether a process other than this one has a context on the GPU. */
static bool used_by_another(uint32_t gpu)
{
	int rows = (int)atomic_load(&sim.mc.m->rows);

	machine_bury_all(&sim.mc);
	for (int row = 0; row < rows; row++)
		if (row != sim.mc.row && atomic_load(&sim.mc.m->proc[row].contexts[gpu]))
			return true;
	return false;
}

/* Whether the GPU takes a new context of this process. */
static CUresult context_allowed(uint32_t gpu)
{
	const struct sim_condition *is = &sim.mc.m->gpu[gpu].is;

	if (atomic_load(&is->lost))
		return CUDA_ERROR_UNKNOWN;
	switch (atomic_load(&is->compute_mode)) {
	case CU_COMPUTEMODE_PROHIBITED:
		return CUDA_ERROR_DEVICE_UNAVAILABLE;
	case CU_COMPUTEMODE_EXCLUSIVE_PROCESS:
		return used_by_another(gpu) ? CUDA_ERROR_DEVICE_UNAVAILABLE : CUDA_SUCCESS;
	}
	return CUDA_SUCCESS;
}

CUresult context_create_locked(struct context **out, CUdevice dev, unsigned flags)
{
	uint32_t gpu = sim.device[dev];
	CUresult r = context_allowed(gpu);
	struct context *ctx;

	if (!r)
		r = engine_start_locked(gpu);
	if (r)
		return r;
	if (!machine_charge(&sim.mc, gpu, sim.mc.m->context))
		return CUDA_ERROR_OUT_OF_MEMORY;
	ctx = calloc(1, sizeof(*ctx));
	if (ctx) {
		ctx->gpu = gpu;
		ctx->device = dev;
		ctx->flags = flags;
		ctx->id = ++sim.next_id;
		ctx->losses = atomic_load(&sim.mc.m->gpu[gpu].is.losses);
		for (size_t i = 0; i < sizeof(default_limits) / sizeof(default_limits[0]); i++)
			ctx->limits[i] = default_limits[i];
		ctx->legacy = stream_new_locked(ctx, 0, 0);
	}
	if (!ctx || !ctx->legacy) {
		free(ctx);
		machine_uncharge(&sim.mc, gpu, sim.mc.m->context);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	ctx->legacy->legacy = true;
	handle_add_locked(ctx, KIND_CONTEXT);
	atomic_fetch_add(&sim.mc.m->proc[sim.mc.row].contexts[gpu], 1);
	*out = ctx;
	return CUDA_SUCCESS;
}

struct context *context_get_locked(CUcontext h)
{
	return handle_get_locked(h, KIND_CONTEXT);
}

/*
 * Waits for its work, frees what it owns. The struct itself stays for good:
 * threads may have it on their stacks, and waiters may still look at its error.
 */
void context_destroy_locked(struct context *ctx)
{
	if (ctx->destroyed)
		return;
	context_sync_locked(ctx);
	ctx->destroyed = true;
	ctx->next = sim.destroyed;
	sim.destroyed = ctx;
	handle_remove_locked(ctx);
	module_free_context_locked(ctx);
	memory_free_context_locked(ctx);
	while (ctx->streams) {
		struct stream *s = ctx->streams;

		/* Others may hold references (events): out of the list by hand. */
		capture_drop_stream_locked(s);
		*s->link = s->next;
		if (s->next)
			s->next->link = s->link;
		s->link = NULL;
		if (!s->destroyed)
			handle_remove_locked(s);
		s->destroyed = true;
		stream_put_locked(s);
	}
	machine_uncharge(&sim.mc, ctx->gpu, sim.mc.m->context);
	atomic_fetch_sub(&sim.mc.m->proc[sim.mc.row].contexts[ctx->gpu], 1);
}

/* A sticky error: the context is of no use any more, what is queued is dropped. */
void context_fail_locked(struct context *ctx, CUresult error)
{
	if (!ctx->error) {
		debug("context %llu failed: error %d", (unsigned long long)ctx->id, error);
		ctx->error = error;
	}
	if (error == CUDA_ERROR_ILLEGAL_ADDRESS)
		machine_event(&sim.mc, ctx->gpu, SIM_EVENT_XID, 31);
	pthread_cond_broadcast(&sim.done);
}

/* A GPU that was lost takes its contexts with it, also if it is back. */
void context_look_locked(struct context *ctx)
{
	if (!ctx->error && atomic_load(&sim.mc.m->gpu[ctx->gpu].is.losses) != ctx->losses)
		context_fail_locked(ctx, CUDA_ERROR_UNKNOWN);
}
