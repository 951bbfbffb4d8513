/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Physical memory as an object of its own: made, shared, released. It is there,
 * and counted, until the last handle and the last mapping of the process that
 * made it are gone.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "memory.h"
#include "shared.h"

#define MAX_NODE 1023

CUresult location_check(const CUmemLocation *at)
{
	switch (at->type) {
	case CU_MEM_LOCATION_TYPE_DEVICE:
		return device_ok(at->id) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
	case CU_MEM_LOCATION_TYPE_HOST:
	case CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT:
		return CUDA_SUCCESS;
	case CU_MEM_LOCATION_TYPE_HOST_NUMA:
		return at->id >= 0 && at->id <= MAX_NODE ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
}

static CUresult prop_check(const CUmemAllocationProp *p)
{
	if (p->type == CU_MEM_ALLOCATION_TYPE_MANAGED)
		return CUDA_ERROR_NOT_SUPPORTED;
	if (p->type != CU_MEM_ALLOCATION_TYPE_PINNED)
		return CUDA_ERROR_INVALID_VALUE;
	if (p->requestedHandleTypes & ~CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
		return CUDA_ERROR_NOT_SUPPORTED;
	return location_check(&p->location);
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option)
{
	CUresult r = enter();

	if (r)
		return r;
	if (!out || !prop || (option != CU_MEM_ALLOC_GRANULARITY_MINIMUM && option != CU_MEM_ALLOC_GRANULARITY_RECOMMENDED))
		return CUDA_ERROR_INVALID_VALUE;
	r = prop_check(prop);
	if (!r)
		*out = VMM_PAGE;
	return r;
}

static struct physical *physical_new(uint64_t size, const CUmemAllocationProp *prop, uint32_t gpu, int fd)
{
	struct physical *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->refs = 1;
	p->gpu = gpu;
	p->size = size;
	p->prop = *prop;
	p->fd = fd;
	p->id = ++sim.next_id;
	handle_add_locked(p, KIND_PHYSICAL);
	return p;
}

static CUresult create(CUmemGenericAllocationHandle *out, uint64_t size, const CUmemAllocationProp *prop)
{
	bool device = prop->location.type == CU_MEM_LOCATION_TYPE_DEVICE;
	uint32_t gpu = device ? sim.device[prop->location.id] : 0;

	if (device ? !charge_locked(gpu, size) : !host_has(size))
		return CUDA_ERROR_OUT_OF_MEMORY;
	int fd = shared_new(&(struct shared_head){
		.kind = SHARED_PHYSICAL, .gpu = gpu, .proc = sim.mc.id, .size = size, .prop = *prop });
	struct physical *p = fd < 0 ? NULL : physical_new(size, prop, gpu, fd);
	if (!p) {
		if (fd >= 0)
			close(fd);
		if (device)
			machine_uncharge(&sim.mc, gpu, size);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	p->charged = device ? size : 0;
	*out = (CUmemGenericAllocationHandle)(uintptr_t)p;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t size, const CUmemAllocationProp *prop, unsigned long long flags)
{
	uint64_t from = clock_ns();
	CUresult r = enter();

	if (r)
		return r;
	if (!out || !prop || size == 0 || size % VMM_PAGE || flags)
		return CUDA_ERROR_INVALID_VALUE;
	r = prop_check(prop);
	if (r)
		return r;
	lock();
	r = create(out, size, prop);
	log_setup("cuMemCreate", NULL, NULL, from);
	return leave(r);
}

static void gone(struct physical *p)
{
	if (p->refs || p->mappings)
		return;
	close(p->fd);
	if (p->charged)
		machine_uncharge(&sim.mc, p->gpu, p->charged);
	free(p);
}

void physical_unmap_locked(struct physical *p)
{
	p->mappings--;
	gone(p);
}

void physical_retain_locked(struct physical *p)
{
	if (p->refs++ == 0)
		handle_add_locked(p, KIND_PHYSICAL);
}

static CUresult enter_physical(CUmemGenericAllocationHandle h, struct physical **p)
{
	CUresult r = enter();

	if (r)
		return r;
	lock();
	*p = handle_get_locked((void *)(uintptr_t)h, KIND_PHYSICAL);
	return *p ? CUDA_SUCCESS : leave(CUDA_ERROR_INVALID_VALUE);
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle h)
{
	uint64_t from = clock_ns();
	struct physical *p;
	CUresult r = enter_physical(h, &p);

	if (r)
		return r;
	if (--p->refs == 0)
		handle_remove_locked(p);
	gone(p);
	log_setup("cuMemRelease", NULL, NULL, from);
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address)
{
	CUresult r = enter();

	if (r)
		return r;
	lock();
	const struct allocation *a = memory_find_locked((uint64_t)(uintptr_t)address);
	if (!out || !a || a->kind != MEMORY_MAPPED)
		return leave(CUDA_ERROR_INVALID_VALUE);
	physical_retain_locked(a->physical);
	*out = (CUmemGenericAllocationHandle)(uintptr_t)a->physical;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(CUmemAllocationProp *prop, CUmemGenericAllocationHandle h)
{
	struct physical *p;
	CUresult r = enter_physical(h, &p);

	if (r)
		return r;
	if (!prop)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*prop = p->prop;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle h, CUmemAllocationHandleType type, unsigned long long flags)
{
	struct physical *p;
	CUresult r = enter_physical(h, &p);

	if (r)
		return r;
	if (!out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !(p->prop.requestedHandleTypes & type))
		return leave(CUDA_ERROR_INVALID_VALUE);
	int fd = fcntl(p->fd, F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return leave(CUDA_ERROR_OPERATING_SYSTEM);
	*(int *)out = fd;
	return leave(CUDA_SUCCESS);
}

/* The descriptor stays the caller's. What it costs is counted where it was made. */
EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *os, CUmemAllocationHandleType type)
{
	uint64_t from = clock_ns();
	struct shared_head head;
	int theirs = (int)(intptr_t)os;
	CUresult r = enter();

	if (r)
		return r;
	if (!out || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !shared_read(theirs, &head) || head.kind != SHARED_PHYSICAL)
		return CUDA_ERROR_INVALID_VALUE;
	lock();
	if (head.prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
		head.prop.location.id = device_of_gpu(head.gpu);
		if (head.prop.location.id < 0)
			return leave(CUDA_ERROR_INVALID_DEVICE);
	}
	int fd = fcntl(theirs, F_DUPFD_CLOEXEC, 0);
	struct physical *p = fd < 0 ? NULL : physical_new(head.size, &head.prop, head.gpu, fd);
	if (!p) {
		if (fd >= 0)
			close(fd);
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	}
	*out = (CUmemGenericAllocationHandle)(uintptr_t)p;
	log_setup("cuMemImportFromShareableHandle", NULL, NULL, from);
	return leave(CUDA_SUCCESS);
}
