/* SPDX-License-Identifier: Apache-2.0 */
/* Managed memory, with advice and prefetches; memory of the host that the driver pins. */
#include "sequence.h"

#define PAGE  65536u
#define PAGES 4u

struct managed {
	CUdeviceptr at;            /* 0: none */
};

static CUmemLocation some_location(struct thread *t)
{
	switch (pick(t, 5)) {
	case 0:
		return (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 99 };
	case 1:
		return (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_HOST };
	default:
		return (CUmemLocation){ .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device };
	}
}

static void ask(struct thread *t, struct managed *m)
{
	static const CUmem_range_attribute attributes[] = { CU_MEM_RANGE_ATTRIBUTE_READ_MOSTLY, CU_MEM_RANGE_ATTRIBUTE_PREFERRED_LOCATION,
							    CU_MEM_RANGE_ATTRIBUTE_ACCESSED_BY, CU_MEM_RANGE_ATTRIBUTE_LAST_PREFETCH_LOCATION };
	CUmem_range_attribute a = attributes[pick(t, 4)];
	size_t n = PAGE * (1 + pick(t, PAGES));
	int value = 77;
	CUresult r = cuMemRangeGetAttribute(&value, sizeof(value), a, m->at, n);

	note(t, r, "cuMemRangeGetAttribute %d of %zu: %d", (int)a, n, value);
}

/* By work and, when that is over, by the program itself. */
static void use(struct thread *t, struct managed *m)
{
	unsigned value = pick(t, 1000), n = WORDS, *seen = (unsigned *)(uintptr_t)m->at;

	note(t, t->cuLaunchKernel_(t->fill, 4, 1, 1, 128, 1, 1, 0, t->stream[0], (void *[]){ &m->at, &value, &n }, NULL),
	     "fill of managed memory");
	if (!settle_stream(t, 0))
		return;
	show_words(t, seen, WORDS);
	/* Without concurrent access it may not be touched while any work runs. */
	if (note(t, cuCtxSynchronize(), "cuCtxSynchronize") != CUDA_SUCCESS)
		return;
	for (unsigned i = 0; i < WORDS; i++)
		seen[i] += i;
	memset(t->host, 0, CHUNK);
	note(t, t->cuMemcpyDtoH_v2_(t->host, m->at, CHUNK), "cuMemcpyDtoH of managed memory");
	show(t, WORDS);
}

static void get(struct thread *t, struct managed *m)
{
	unsigned flags = chance(t, 80) ? CU_MEM_ATTACH_GLOBAL : CU_MEM_ATTACH_HOST;

	if (chance(t, 10))
		flags = 77;
	if (note(t, cuMemAllocManaged(&m->at, PAGE * PAGES, flags), "cuMemAllocManaged, %u", flags) != CUDA_SUCCESS)
		m->at = 0;
}

void managed(struct thread *t)
{
	CUmemLocation l = some_location(t);
	size_t n = PAGE * (1 + pick(t, PAGES));
	CUmem_advise advice = (CUmem_advise)(1 + pick(t, 6));
	struct managed *m = t->managed;

	if (!m)
		m = t->managed = state_of(sizeof(*m));
	if (t->capturing >= 0)
		return;
	if (!m->at) {
		get(t, m);
		return;
	}
	switch (pick(t, 8)) {
	case 0:
	case 1:
		note(t, cuMemAdvise(m->at, n, advice, l), "cuMemAdvise %d of %zu, %d %d", (int)advice, n, (int)l.type, l.id);
		break;
	case 2:
	case 3:
		note(t, t->cuMemPrefetchAsync_v2_(m->at, n, l, 0, t->stream[0]), "cuMemPrefetchAsync of %zu, %d %d", n, (int)l.type, l.id);
		break;
	case 4:
		ask(t, m);
		break;
	case 5:
		use(t, m);
		break;
	case 6:
		note(t, t->cuStreamAttachMemAsync_(t->stream[0], m->at, n, CU_MEM_ATTACH_GLOBAL), "cuStreamAttachMemAsync of %zu", n);
		break;
	case 7:
		if (chance(t, 50) || !settle_stream(t, 0))
			return;
		if (note(t, cuMemFree(m->at), "cuMemFree of managed memory") == CUDA_SUCCESS)
			m->at = 0;
		break;
	}
}

struct pinned {
	void *own;                 /* of the driver */
	char *registered;          /* two pages of what follows */
	char space[3 * 4096];
};

static void copy_pinned(struct thread *t, struct pinned *p)
{
	void *side = p->own ? p->own : p->registered;
	struct buffer *b = some_buffer(t);
	unsigned from = pick(t, 1000);

	if (!b || t->capturing >= 0 || !settle(t, b))
		return;
	for (unsigned i = 0; i < WORDS; i++)
		((unsigned *)side)[i] = from + i;
	note(t, t->cuMemcpyHtoDAsync_v2_(b->at, side, CHUNK, t->stream[b->home]), "copy of pinned memory to %d", which(t, b));
	note(t, t->cuMemsetD8Async_(b->at + 4, 9, 16, t->stream[b->home]), "set in %d", which(t, b));
	note(t, t->cuMemcpyDtoHAsync_v2_(side, b->at, CHUNK, t->stream[b->home]), "copy of %d to pinned memory", which(t, b));
	settle(t, b);
	show_words(t, side, WORDS);
}

static void ask_pinned(struct thread *t, struct pinned *p)
{
	CUdeviceptr at = 0;
	unsigned flags = 77;
	CUresult r = cuMemHostGetFlags(&flags, p->own ? p->own : p->registered);

	note(t, r, "cuMemHostGetFlags: %u", flags);
	note(t, cuMemHostGetDevicePointer(&at, p->own ? p->own : p->registered, 0), "cuMemHostGetDevicePointer");
	note(t, cuMemHostGetDevicePointer(&at, t->host, 0), "cuMemHostGetDevicePointer of any memory");
}

void pinned(struct thread *t)
{
	struct pinned *p = t->pinned;

	if (!p) {
		p = t->pinned = state_of(sizeof(*p));
		p->registered = (char *)(((uintptr_t)p->space + 4095) / 4096 * 4096);
	}
	switch (pick(t, 7)) {
	case 0:
		if (!p->own && note(t, cuMemHostAlloc(&p->own, CHUNK, pick(t, 8)), "cuMemHostAlloc") != CUDA_SUCCESS)
			p->own = NULL;
		break;
	case 1:
		if (p->own && note(t, cuMemFreeHost(p->own), "cuMemFreeHost") == CUDA_SUCCESS)
			p->own = NULL;
		break;
	case 2:
		note(t, cuMemHostRegister(p->registered, 8192, CU_MEMHOSTREGISTER_PORTABLE), "cuMemHostRegister");
		break;
	case 3:
		note(t, cuMemHostUnregister(p->registered), "cuMemHostUnregister");
		break;
	case 4:
	case 5:
		copy_pinned(t, p);
		break;
	case 6:
		ask_pinned(t, p);
		break;
	}
}
