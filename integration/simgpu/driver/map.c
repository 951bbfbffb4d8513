/* SPDX-License-Identifier: Apache-2.0 */
/* Mapping physical memory at reserved addresses, and who may use it there. */
#include <sys/mman.h>

#include "memory.h"

#define READ CU_MEM_ACCESS_FLAGS_PROT_READ
#define READWRITE CU_MEM_ACCESS_FLAGS_PROT_READWRITE

/* Who asks: the engine of a GPU, or a call in a context. False: neither. */
static bool asker(uint32_t *gpu)
{
	const struct context *ctx = self.depth ? handle_get_locked(self.stack[self.depth - 1], KIND_CONTEXT) : NULL;

	if (self.engine)
		*gpu = self.gpu;
	else if (ctx)
		*gpu = ctx->gpu;
	return self.engine || ctx;
}

static bool allowed(const struct allocation *a, bool write)
{
	unsigned want = write ? READWRITE : READ, any = 0;
	uint32_t gpu = 0;
	bool one = asker(&gpu);

	for (int d = 0; d < sim.n_devices; d++)
		if (!one || sim.device[d] == gpu)
			any |= a->access[d];
	return (any & want) == want;
}

/* A range may go over several mappings, if they are side by side. */
void *map_at_locked(uint64_t address, size_t n, bool write)
{
	uint64_t at = address, end = address + n;

	if (end < address)
		return NULL;
	do {
		const struct allocation *a = memory_find_locked(at);

		if (!a || a->kind != MEMORY_MAPPED || !allowed(a, write))
			return NULL;
		at = a->base + a->size;
	} while (at < end);
	return arena_host(address);
}

static CUresult map(uint64_t at, uint64_t size, uint64_t offset, struct physical *p)
{
	bool device = p->prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
	struct allocation a = {
		.base = at, .size = size, .kind = MEMORY_MAPPED, .gpu = p->gpu, .device = device ? p->prop.location.id : -1,
		.id = p->id, .physical = p,
	};
	uint64_t base, whole;

	if (size > p->size || !reserve_find_locked(at, size, &base, &whole) || memory_any_locked(at, size))
		return CUDA_ERROR_INVALID_VALUE;
	if (!memory_place_locked(&a))
		return CUDA_ERROR_OUT_OF_MEMORY;
	if (!window_map_locked(at, size, p->fd, offset)) {
		memory_remove_locked(memory_find_locked(at));
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	p->mappings++;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemMap(CUdeviceptr at, size_t size, size_t offset, CUmemGenericAllocationHandle h, unsigned long long flags)
{
	uint64_t from = clock_ns();
	CUresult r = enter();

	if (r)
		return r;
	/* The offset "currently must be zero". */
	if (at % VMM_PAGE || size == 0 || size % VMM_PAGE || offset || flags)
		return CUDA_ERROR_INVALID_VALUE;
	lock();
	struct physical *p = handle_get_locked((void *)(uintptr_t)h, KIND_PHYSICAL);
	r = p ? map(at, size, offset, p) : CUDA_ERROR_INVALID_VALUE;
	log_setup("cuMemMap", NULL, NULL, from);
	return leave(r);
}

/* Whether the range is mapped without a hole and ends where mappings end. */
static bool whole_mappings(uint64_t from, uint64_t size)
{
	uint64_t at = from;

	while (at < from + size) {
		const struct allocation *a = memory_find_locked(at);

		if (!a || a->kind != MEMORY_MAPPED || a->base != at)
			return false;
		at += a->size;
	}
	return size && at == from + size;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr at, size_t size)
{
	uint64_t from = clock_ns();
	CUresult r = enter();

	if (r)
		return r;
	lock();
	if (!whole_mappings(at, size))
		return leave(CUDA_ERROR_INVALID_VALUE);
	window_unmap_locked(at, size);
	for (uint64_t end = at + size; at < end;) {
		struct allocation *a = memory_find_locked(at);
		struct physical *p = a->physical;

		at += a->size;
		memory_remove_locked(a);
		physical_unmap_locked(p);
	}
	log_setup("cuMemUnmap", NULL, NULL, from);
	return leave(CUDA_SUCCESS);
}

static bool of_host(CUmemLocationType t)
{
	return t == CU_MEM_LOCATION_TYPE_HOST || t == CU_MEM_LOCATION_TYPE_HOST_NUMA || t == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

static CUresult access_check(const CUmemAccessDesc *d)
{
	if (d->flags != CU_MEM_ACCESS_FLAGS_PROT_NONE && d->flags != READ && d->flags != READWRITE)
		return CUDA_ERROR_INVALID_VALUE;
	return location_check(&d->location);
}

/* The program itself gets access to its own kind of memory alone. */
static CUresult grant_host(struct allocation *a, CUmemAccess_flags flags)
{
	int prot = flags == READWRITE ? PROT_READ | PROT_WRITE : flags == READ ? PROT_READ : PROT_NONE;

	if (!of_host(a->physical->prop.location.type))
		return flags ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
	if (!window_show_locked(a->base, a->size, a->physical->fd, 0, prot))
		return CUDA_ERROR_OUT_OF_MEMORY;
	a->host_access = (unsigned char)flags;
	return CUDA_SUCCESS;
}

static CUresult grant(uint64_t at, uint64_t size, const CUmemAccessDesc *d)
{
	CUresult r = CUDA_SUCCESS;

	for (uint64_t end = at + size; at < end && !r;) {
		struct allocation *a = memory_find_locked(at);

		at += a->size;
		if (of_host(d->location.type))
			r = grant_host(a, d->flags);
		else
			a->access[d->location.id] = (unsigned char)d->flags;
	}
	return r;
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr at, size_t size, const CUmemAccessDesc *desc, size_t count)
{
	uint64_t from = clock_ns();
	CUresult r = enter();

	if (r)
		return r;
	if (!desc || count == 0)
		return CUDA_ERROR_INVALID_VALUE;
	for (size_t i = 0; i < count && !r; i++)
		r = access_check(&desc[i]);
	if (r)
		return r;
	lock();
	if (!whole_mappings(at, size))
		return leave(CUDA_ERROR_INVALID_VALUE);
	for (size_t i = 0; i < count && !r; i++)
		r = grant(at, size, &desc[i]);
	log_setup("cuMemSetAccess", NULL, NULL, from);
	return leave(r);
}

EXPORT CUresult cuMemGetAccess(unsigned long long *flags, const CUmemLocation *location, CUdeviceptr p)
{
	CUresult r = enter();

	if (r)
		return r;
	if (!flags || !location)
		return CUDA_ERROR_INVALID_VALUE;
	r = location_check(location);
	if (r)
		return r;
	lock();
	const struct allocation *a = memory_find_locked(p);
	if (!a || a->kind != MEMORY_MAPPED)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*flags = of_host(location->type) ? a->host_access : a->access[location->id];
	return leave(CUDA_SUCCESS);
}
