/* SPDX-License-Identifier: Apache-2.0 */
/* Pools of stream-ordered memory. What they give out are buffers like others. */
#include "sequence.h"

static void create(struct thread *t, int i)
{
	CUmemPoolProps p = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
			     .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = chance(t, 90) ? device : 99 } };

	if (t->pool[i])
		return;
	if (note(t, cuMemPoolCreate(&t->pool[i], &p), "cuMemPoolCreate %d on %d", i, p.location.id) != CUDA_SUCCESS)
		t->pool[i] = NULL;
}

static void fill_from(struct thread *t, int i)
{
	struct buffer *b = &t->buffer[pick(t, BUFFERS)];
	int home = some_stream(t);
	CUdeviceptr at = 0;

	if (b->home >= 0 || t->capturing >= 0)
		return;
	if (note(t, t->cuMemAllocFromPoolAsync_(&at, CHUNK, t->pool[i], t->stream[home]), "cuMemAllocFromPoolAsync %d of %d on %d", which(t, b),
		 i, home) != CUDA_SUCCESS)
		return;
	*b = (struct buffer){ .at = at, .home = home, .async = true };
	note(t, t->cuMemsetD32Async_(at, 7, WORDS, t->stream[home]), "first set of %d", which(t, b));
}

/* Marks of what is used depend on when frees are reached; these do not. */
static void attributes(struct thread *t, int i)
{
	static const CUmemPool_attribute told[] = { CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES, CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
						    CU_MEMPOOL_ATTR_RELEASE_THRESHOLD };
	CUmemPool_attribute a = told[pick(t, 3)];
	cuuint64_t value = a == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD ? (cuuint64_t)pick(t, 64) << 20 : pick(t, 2);
	CUresult r;

	if (chance(t, 50))
		note(t, cuMemPoolSetAttribute(t->pool[i], a, &value), "cuMemPoolSetAttribute %d of %d to %llu", (int)a, i,
		     (unsigned long long)value);
	value = 0;
	r = cuMemPoolGetAttribute(t->pool[i], a, &value);
	note(t, r, "cuMemPoolGetAttribute %d of %d: %llu", (int)a, i, (unsigned long long)value);
	value = 5;
	note(t, cuMemPoolSetAttribute(t->pool[i], CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &value), "cuMemPoolSetAttribute of what is used");
	note(t, cuMemPoolSetAttribute(t->pool[i], CU_MEMPOOL_ATTR_USED_MEM_HIGH, &value), "cuMemPoolSetAttribute of a mark");
}

static void access(struct thread *t, int i)
{
	CUmemAccessDesc d = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device },
			      .flags = chance(t, 80) ? CU_MEM_ACCESS_FLAGS_PROT_READWRITE : CU_MEM_ACCESS_FLAGS_PROT_NONE };
	CUmemAccess_flags flags = 77;
	CUresult r;

	note(t, cuMemPoolSetAccess(t->pool[i], &d, 1), "cuMemPoolSetAccess of %d to %d", i, (int)d.flags);
	r = cuMemPoolGetAccess(&flags, t->pool[i], &d.location);
	note(t, r, "cuMemPoolGetAccess of %d: %d", i, (int)flags);
}

/* The one of the device, which all threads share. */
static void current(struct thread *t, int i)
{
	CUmemoryPool first = NULL, now = NULL;
	bool own, is_first;

	if (t->threads > 1)
		return;
	note(t, cuDeviceGetDefaultMemPool(&first, device), "cuDeviceGetDefaultMemPool");
	switch (pick(t, 3)) {
	case 0:
		note(t, cuDeviceSetMemPool(device, t->pool[i]), "cuDeviceSetMemPool %d", i);
		break;
	case 1:
		note(t, cuDeviceSetMemPool(device, first), "cuDeviceSetMemPool to the default");
		break;
	}
	note(t, cuDeviceGetMemPool(&now, device), "cuDeviceGetMemPool");
	own = now == t->pool[i];
	is_first = now == first;
	fprintf(t->out, "  %s\n", own ? "own" : is_first ? "the default" : "another");
	note(t, cuMemPoolDestroy(first), "cuMemPoolDestroy of the default");
}

void pools(struct thread *t)
{
	int i = (int)pick(t, POOLS);
	size_t keep;

	if (!t->pool[i] || chance(t, 5)) {
		create(t, i);
		return;
	}
	switch (pick(t, 8)) {
	case 0:
	case 1:
	case 2:
		fill_from(t, i);
		break;
	case 3:
		attributes(t, i);
		break;
	case 4:
		access(t, i);
		break;
	case 5:
		current(t, i);
		break;
	case 6:
		keep = (size_t)pick(t, 64) << 20;
		note(t, cuMemPoolTrimTo(t->pool[i], keep), "cuMemPoolTrimTo %d, %zu", i, keep);
		break;
	case 7:
		if (chance(t, 60))
			return;
		note(t, cuMemPoolDestroy(t->pool[i]), "cuMemPoolDestroy %d", i);
		t->pool[i] = NULL;
		break;
	}
}
