/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual memory management: handles, ranges, what is mapped where. */
#include "sequence.h"

#define HANDLES 4
#define SLOTS   4              /* of one page each, in one range */

struct vmm {
	size_t page;
	CUmemGenericAllocationHandle handle[HANDLES];
	unsigned refs[HANDLES];    /* ours */
	CUdeviceptr range;
	int mapped[SLOTS];         /* the handle there, from 1 */
	bool usable[SLOTS];
};

static CUmemAllocationProp prop_of(int id)
{
	return (CUmemAllocationProp){ .type = CU_MEM_ALLOCATION_TYPE_PINNED,
				      .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = id } };
}

static void create(struct thread *t, struct vmm *v, int h)
{
	CUmemAllocationProp p = prop_of(device);
	CUmemGenericAllocationHandle none;

	if (v->refs[h]) {
		p = prop_of(99);
		note(t, cuMemCreate(&none, v->page, &p, 0), "cuMemCreate on no device");
		return;
	}
	if (chance(t, 20)) {
		note(t, cuMemCreate(&none, v->page + 1, &p, 0), "cuMemCreate of a page and a byte");
		note(t, cuMemCreate(&none, 0, &p, 0), "cuMemCreate of nothing");
		note(t, cuMemCreate(&none, (size_t)1 << 50, &p, 0), "cuMemCreate of a PiB");
		return;
	}
	if (note(t, cuMemCreate(&v->handle[h], v->page, &p, 0), "cuMemCreate %d", h) == CUDA_SUCCESS)
		v->refs[h] = 1;
}

static void let_go(struct thread *t, struct vmm *v, int h)
{
	if (!v->refs[h])
		return;
	if (note(t, cuMemRelease(v->handle[h]), "cuMemRelease %d", h) == CUDA_SUCCESS)
		v->refs[h]--;
}

/* At a place where another mapping is, or of memory that has been released, it is an error. */
static void map(struct thread *t, struct vmm *v, int h, int slot)
{
	if (!v->refs[h])
		return;
	if (chance(t, 10)) {
		note(t, cuMemMap(v->range, v->page, v->page, v->handle[h], 0), "cuMemMap at an offset");
		return;
	}
	if (note(t, cuMemMap(v->range + (size_t)slot * v->page, v->page, 0, v->handle[h], 0), "cuMemMap %d at %d", h, slot) == CUDA_SUCCESS)
		v->mapped[slot] = h + 1;
}

static void unmap(struct thread *t, struct vmm *v, int slot)
{
	/* What is in flight there must be over. */
	if (v->mapped[slot] && !settle_stream(t, 0))
		return;
	if (note(t, cuMemUnmap(v->range + (size_t)slot * v->page, v->page), "cuMemUnmap %d", slot) != CUDA_SUCCESS)
		return;
	v->mapped[slot] = 0;
	v->usable[slot] = false;
}

static void access(struct thread *t, struct vmm *v, int slot)
{
	CUmemAccessDesc d = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device },
			      .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUdeviceptr at = v->range + (size_t)slot * v->page;
	unsigned long long flags = 77;
	CUresult r;

	if (chance(t, 70)) {
		r = note(t, cuMemSetAccess(at, v->page, &d, 1), "cuMemSetAccess %d", slot);
		v->usable[slot] = v->usable[slot] || r == CUDA_SUCCESS;
	}
	r = cuMemGetAccess(&flags, &d.location, at);
	note(t, r, "cuMemGetAccess %d: %llu", slot, flags);
}

static void use(struct thread *t, struct vmm *v, int slot)
{
	CUdeviceptr at = v->range + (size_t)slot * v->page;
	unsigned value = pick(t, 1000), n = WORDS;

	if (t->capturing >= 0)
		return;
	/* Without access the call says so; a kernel would end the context. */
	note(t, t->cuMemsetD32Async_(at, value, WORDS, t->stream[0]), "set of a mapping at %d", slot);
	if (v->usable[slot] && chance(t, 50))
		note(t, t->cuLaunchKernel_(t->fill, 4, 1, 1, 128, 1, 1, 0, t->stream[0], (void *[]){ &at, &value, &n }, NULL),
		     "fill of a mapping at %d", slot);
	memset(t->host, 0, CHUNK);
	note(t, t->cuMemcpyDtoHAsync_v2_(t->host, at, CHUNK, t->stream[0]), "reading a mapping at %d", slot);
	settle_stream(t, 0);
	show(t, WORDS);
}

static void retain(struct thread *t, struct vmm *v, int slot)
{
	CUmemGenericAllocationHandle h = 0;
	CUresult r = cuMemRetainAllocationHandle(&h, (void *)(uintptr_t)(v->range + (size_t)slot * v->page + 5));
	int known = v->mapped[slot] - 1;

	note(t, r, "cuMemRetainAllocationHandle %d", slot);
	if (r != CUDA_SUCCESS)
		return;
	/* All our handles may be gone, while the mapping keeps the memory. */
	if (known >= 0 && v->handle[known] == h)
		v->refs[known]++;
	else
		note(t, cuMemRelease(h), "cuMemRelease of a handle from before");
}

static void ranges(struct thread *t, struct vmm *v)
{
	CUdeviceptr other = 0;

	switch (pick(t, 3)) {
	case 0:
		note(t, cuMemAddressFree(v->range, v->page), "cuMemAddressFree of a part");
		break;
	case 1:
		note(t, cuMemAddressReserve(&other, v->page + 1, 0, 0, 0), "cuMemAddressReserve of a page and a byte");
		break;
	case 2:
		if (note(t, cuMemAddressReserve(&other, 2 * v->page, 0, 0, 0), "cuMemAddressReserve") == CUDA_SUCCESS)
			note(t, cuMemAddressFree(other, 2 * v->page), "cuMemAddressFree");
		break;
	}
}

static struct vmm *start(struct thread *t)
{
	struct vmm *v = state_of(sizeof(*v));
	CUmemAllocationProp p = prop_of(device);

	note(t, cuMemGetAllocationGranularity(&v->page, &p, CU_MEM_ALLOC_GRANULARITY_MINIMUM), "cuMemGetAllocationGranularity");
	note(t, cuMemAddressReserve(&v->range, SLOTS * v->page, 0, 0, 0), "cuMemAddressReserve");
	return v;
}

void vmm(struct thread *t)
{
	int h = (int)pick(t, HANDLES), slot = (int)pick(t, SLOTS);

	if (!t->vmm)
		t->vmm = start(t);
	switch (pick(t, 10)) {
	case 0:
	case 1:
		create(t, t->vmm, h);
		break;
	case 2:
		let_go(t, t->vmm, h);
		break;
	case 3:
	case 4:
		map(t, t->vmm, h, slot);
		break;
	case 5:
		unmap(t, t->vmm, slot);
		break;
	case 6:
		access(t, t->vmm, slot);
		break;
	case 7:
		use(t, t->vmm, slot);
		break;
	case 8:
		retain(t, t->vmm, slot);
		break;
	case 9:
		ranges(t, t->vmm);
		break;
	}
}
