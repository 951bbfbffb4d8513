/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A pool in two processes. What goes over as the pool's descriptor is the file of
 * all device memory of that GPU; a pointer goes over as a place in it.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "pool.h"
#include "shared.h"

#define MAGIC 0x4c4f4f50ull /* "POOL" */

struct place {
	uint64_t magic, id, offset, size;
	uint32_t proc;
};
_Static_assert(sizeof(struct place) <= sizeof(CUmemPoolPtrExportData), "a place fits into what the program passes on");

/* Some address of the GPU's: its file is asked for by one. */
static CUresult any_address(const struct pool *p, uint64_t *address)
{
	if (!arena_alloc_locked(p->gpu, 1, address))
		return CUDA_ERROR_OUT_OF_MEMORY;
	arena_free_locked(p->gpu, *address, 1);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolExportToShareableHandle(void *out, CUmemoryPool h, CUmemAllocationHandleType type, unsigned long long flags)
{
	struct pool *p;
	uint64_t address, offset;
	CUresult r = enter_pool(h, &p);

	if (r)
		return r;
	if (!out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !(p->props.handleTypes & type) || p->imported)
		return leave(CUDA_ERROR_INVALID_VALUE);
	r = any_address(p, &address);
	if (r)
		return leave(r);
	int fd = fcntl(arena_file_locked(address, &offset), F_DUPFD_CLOEXEC, 0);
	if (fd < 0)
		return leave(CUDA_ERROR_OPERATING_SYSTEM);
	*(int *)out = fd;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemPoolImportFromShareableHandle(CUmemoryPool *out, void *os, CUmemAllocationHandleType type, unsigned long long flags)
{
	uint64_t from = clock_ns();
	struct shared_head head;
	struct pool *p;
	CUmemPoolProps props = { .allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE } };
	CUresult r = enter();

	if (r)
		return r;
	if (!out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || !shared_read((int)(intptr_t)os, &head) ||
	    head.kind != SHARED_ARENA)
		return CUDA_ERROR_INVALID_VALUE;
	lock();
	props.location.id = device_of_gpu(head.gpu);
	if (props.location.id < 0)
		return leave(CUDA_ERROR_INVALID_DEVICE);
	int fd = fcntl((int)(intptr_t)os, F_DUPFD_CLOEXEC, 0);
	r = fd < 0 ? CUDA_ERROR_OPERATING_SYSTEM : pool_new_locked(&props, &p);
	if (r) {
		if (fd >= 0)
			close(fd);
		return leave(r);
	}
	p->imported = true;
	p->fd = fd;
	p->proc = head.proc;
	*out = (CUmemoryPool)p;
	log_setup("cuMemPoolImportFromShareableHandle", NULL, NULL, from);
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemPoolExportPointer(CUmemPoolPtrExportData *out, CUdeviceptr address)
{
	struct place place = { .magic = MAGIC };
	CUresult r = enter();

	if (r)
		return r;
	lock();
	const struct allocation *a = memory_find_locked(address);
	if (!out || !a || a->base != address || a->kind != MEMORY_POOL || !pool_handle_types(a->pool))
		return leave(CUDA_ERROR_INVALID_VALUE);
	arena_file_locked(a->base, &place.offset);
	place.size = a->size;
	place.id = a->id;
	place.proc = sim.mc.id;
	memset(out, 0, sizeof(*out));
	memcpy(out, &place, sizeof(place));
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemPoolImportPointer(CUdeviceptr *out, CUmemoryPool h, CUmemPoolPtrExportData *data)
{
	uint64_t from = clock_ns(), address;
	struct place place;
	struct pool *p;
	CUresult r = enter_pool(h, &p);

	if (r)
		return r;
	if (!out || !data || !p->imported)
		return leave(CUDA_ERROR_INVALID_VALUE);
	memcpy(&place, data, sizeof(place));
	if (place.magic != MAGIC || place.proc != p->proc)
		return leave(CUDA_ERROR_INVALID_VALUE);
	r = import_locked(&(struct allocation){ .gpu = p->gpu, .device = p->device, .pool = p }, p->fd, place.offset, place.size, &address);
	if (!r) {
		p->live++;
		*out = address;
	}
	log_setup("cuMemPoolImportPointer", NULL, NULL, from);
	return leave(r);
}
