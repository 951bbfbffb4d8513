/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The kernels that have a body here. Each is also in integration/kernels as PTX
 * that a real driver compiles, under the same entry name and with the same
 * parameters.
 */
#include <stdatomic.h>
#include <string.h>

#include "sim.h"

#define LAUNCH_NS 2000             /* the shortest kernel */
#define MEMORY_BYTES_PER_US 400000 /* 400 GB/s */

static uint64_t read_param(const struct launch *l, uint32_t i)
{
	uint64_t v = 0;

	memcpy(&v, l->params + l->layout[i].offset, l->layout[i].size);
	return v;
}

static uint64_t threads(const struct launch *l)
{
	uint64_t n = 1;

	for (int i = 0; i < 3; i++)
		n *= (uint64_t)l->grid[i] * l->block[i];
	return n;
}

/* As many elements as there are threads, one each: the PTX has no loop. */
static uint64_t elements(const struct launch *l, uint64_t n)
{
	uint64_t x = (uint64_t)l->grid[0] * l->block[0];

	return n < x ? n : x;
}

static CUresult spin_us(const struct launch *l, uint64_t *ns)
{
	uint64_t want = (read_param(l, 0) & UINT32_MAX) * 1000;

	*ns = want > LAUNCH_NS ? want : LAUNCH_NS;
	return CUDA_SUCCESS;
}

static CUresult vec_add_f32(const struct launch *l, uint64_t *ns)
{
	uint64_t n = elements(l, read_param(l, 3) & UINT32_MAX);
	const float *a = memory_at(read_param(l, 0), n * 4, false);
	const float *b = memory_at(read_param(l, 1), n * 4, false);
	float *c = memory_to(read_param(l, 2), n * 4, false);

	*ns = LAUNCH_NS + n * 12 * 1000 / MEMORY_BYTES_PER_US;
	if (n == 0)
		return CUDA_SUCCESS;
	if (!a || !b || !c)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	for (uint64_t i = 0; i < n; i++)
		c[i] = a[i] + b[i];
	return CUDA_SUCCESS;
}

static CUresult fill_u32(const struct launch *l, uint64_t *ns)
{
	uint64_t n = elements(l, read_param(l, 2) & UINT32_MAX);
	uint32_t *p = memory_to(read_param(l, 0), n * 4, false);
	uint32_t value = (uint32_t)read_param(l, 1);

	*ns = LAUNCH_NS + n * 4 * 1000 / MEMORY_BYTES_PER_US;
	if (n == 0)
		return CUDA_SUCCESS;
	if (!p)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	for (uint64_t i = 0; i < n; i++)
		p[i] = value;
	return CUDA_SUCCESS;
}

static CUresult endless(const struct launch *l, uint64_t *ns)
{
	*ns = threads(l) ? ENDLESS : 0;
	return CUDA_SUCCESS;
}

/* Also between processes: the word may be in host memory that they share. */
static CUresult meet(const struct launch *l, uint64_t *ns)
{
	_Atomic uint32_t *arrived = memory_to(read_param(l, 0), sizeof(*arrived), false);

	*ns = threads(l) ? ENDLESS : 0;
	if (!arrived)
		return CUDA_ERROR_ILLEGAL_ADDRESS;
	atomic_fetch_add(arrived, (uint32_t)threads(l));
	return CUDA_SUCCESS;
}

static bool all_met(const struct launch *l)
{
	_Atomic uint32_t *arrived = memory_at(read_param(l, 0), sizeof(*arrived), false);

	return !arrived || atomic_load(arrived) >= (read_param(l, 1) & UINT32_MAX);
}

static uint64_t *stamps(const struct launch *l)
{
	return memory_to(read_param(l, 0), 16 + 16 * (read_param(l, 1) & UINT32_MAX), false);
}

static CUresult stamp(const struct launch *l, uint64_t *ns)
{
	uint64_t want = read_param(l, 2) & UINT32_MAX; /* a nanosecond a loop */

	*ns = want > LAUNCH_NS ? want : LAUNCH_NS;
	return stamps(l) ? CUDA_SUCCESS : CUDA_ERROR_ILLEGAL_ADDRESS;
}

/* The clock is CLOCK_MONOTONIC. */
static void stamped(const struct launch *l, uint64_t began_ns, uint64_t ended_ns)
{
	uint64_t *log = stamps(l), capacity = read_param(l, 1) & UINT32_MAX;

	for (uint64_t n = log ? threads(l) : 0; n > 0; n--) {
		uint64_t i = atomic_fetch_add((_Atomic uint64_t *)log, 1);

		if (i < capacity) {
			log[2 + 2 * i] = began_ns;
			log[3 + 2 * i] = ended_ns;
		}
	}
}

const struct body bodies[] = {
	{ "spin_us", 1, { 4 }, .run = spin_us },
	{ "vec_add_f32", 4, { 8, 8, 8, 4 }, .run = vec_add_f32 },
	{ "fill_u32", 3, { 8, 4, 4 }, .run = fill_u32 },
	{ "endless", 0, { 0 }, .run = endless },
	{ "meet", 2, { 8, 4 }, .run = meet, .over = all_met },
	{ "stamp", 3, { 8, 4, 4 }, .run = stamp, .ended = stamped },
	{ 0 },
};

const struct body *body_find(const char *name)
{
	for (const struct body *b = bodies; b->name; b++)
		if (strcmp(b->name, name) == 0)
			return b;
	return NULL;
}
