/* SPDX-License-Identifier: Apache-2.0 */
/* What copies, sets and kernels do, and how long they take. Without the mutex. */
#include <string.h>

#include "sim.h"

/* A model, not a measurement: a fixed cost and a rate. */
#define FIXED_NS 2000
#define LINK_BYTES_PER_US 16000   /* 16 GB/s over the bus */
#define MEMORY_BYTES_PER_US 400000 /* 400 GB/s in the device */

uint64_t copy_ns(bool device_to_device, size_t bytes)
{
	return FIXED_NS + (uint64_t)bytes * 1000 / (device_to_device ? MEMORY_BYTES_PER_US / 2 : LINK_BYTES_PER_US);
}

static CUresult run_copy(struct step *st)
{
	struct copy *c = &st->copy;
	bool device = !c->staged && memory_is_device(c->dst) && memory_is_device(c->src);
	size_t rows = c->height * (c->depth ? c->depth : 1);

	st->duration_ns = copy_ns(device, c->width * rows);
	for (size_t i = 0; i < rows; i++) {
		size_t y = i % c->height, z = i / c->height;
		void *to = memory_to(c->dst + z * c->dst_slice + y * c->dst_pitch, c->width, true);
		const void *from = c->staged ? (char *)c->staged + i * c->width :
			memory_at(c->src + z * c->src_slice + y * c->src_pitch, c->width, true);

		if (!to || !from)
			return CUDA_ERROR_ILLEGAL_ADDRESS;
		memmove(to, from, c->width);
	}
	return CUDA_SUCCESS;
}

static void fill(void *at, uint32_t value, uint32_t size, size_t n)
{
	if (size == 1)
		memset(at, (int)value, n);
	else if (size == 2)
		for (size_t i = 0; i < n; i++)
			((uint16_t *)at)[i] = (uint16_t)value;
	else
		for (size_t i = 0; i < n; i++)
			((uint32_t *)at)[i] = value;
}

static CUresult run_set(struct step *st)
{
	const struct set *s = &st->set;
	size_t row = s->width * s->size;

	st->duration_ns = FIXED_NS + (uint64_t)row * s->height * 1000 / MEMORY_BYTES_PER_US;
	for (size_t y = 0; y < s->height; y++) {
		void *at = memory_to(s->dst + y * s->pitch, row, false);

		if (!at)
			return CUDA_ERROR_ILLEGAL_ADDRESS;
		fill(at, s->value, s->size, s->width);
	}
	return CUDA_SUCCESS;
}

bool step_over(const struct step *st)
{
	return st->kind == STEP_KERNEL && st->launch.body->over && st->launch.body->over(&st->launch);
}

void step_ended(const struct step *st, uint64_t began_ns, uint64_t ended_ns)
{
	if (st->kind == STEP_KERNEL && st->launch.body->ended)
		st->launch.body->ended(&st->launch, began_ns, ended_ns);
}

CUresult step_run(struct context *ctx, struct step *st)
{
	(void)ctx;
	switch (st->kind) {
	case STEP_KERNEL:
		return st->launch.body->run(&st->launch, &st->duration_ns);
	case STEP_COPY:
		return run_copy(st);
	case STEP_SET:
		return run_set(st);
	default:
		return CUDA_SUCCESS;
	}
}
