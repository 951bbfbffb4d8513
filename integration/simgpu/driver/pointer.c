/* SPDX-License-Identifier: Apache-2.0 */
/* What is known of an address. */
#include <string.h>

#include "memory.h"

static CUmemorytype type_of(const struct allocation *a)
{
	if (a->kind == MEMORY_MAPPED)
		return a->physical->prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
	return a->kind == MEMORY_HOST || a->kind == MEMORY_REGISTERED ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
}

static CUmemAllocationHandleType handle_types(const struct allocation *a)
{
	if (a->kind == MEMORY_MAPPED)
		return a->physical->prop.requestedHandleTypes;
	return a->kind == MEMORY_POOL ? pool_handle_types(a->pool) : CU_MEM_HANDLE_TYPE_NONE;
}

/* What its own device, or the one of the context, may do there. */
static unsigned access_flags(const struct allocation *a)
{
	if (a->kind == MEMORY_REGISTERED && a->flags & CU_MEMHOSTREGISTER_READ_ONLY)
		return CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ;
	if (a->kind != MEMORY_MAPPED)
		return CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
	if (map_at_locked(a->base, a->size, true))
		return CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE;
	return map_at_locked(a->base, a->size, false) ? CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READ : CU_POINTER_ATTRIBUTE_ACCESS_FLAG_NONE;
}

/* The range is what was reserved, the mapping what is there. */
static void range(const struct allocation *a, uint64_t *base, uint64_t *size)
{
	*base = a->base;
	*size = a->size;
	if (a->kind == MEMORY_MAPPED)
		reserve_find_locked(a->base, a->size, base, size);
}

/* Addresses at which nothing is mapped yet are known too. */
static CUresult reserved(void *data, CUpointer_attribute attr, uint64_t p)
{
	uint64_t base, size;

	if (!reserve_find_locked(p, 1, &base, &size))
		return CUDA_ERROR_INVALID_VALUE;
	switch (attr) {
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*(CUdeviceptr *)data = base;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*(size_t *)data = size;
		break;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		*(unsigned *)data = 0;
		break;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

static CUresult attribute(void *data, CUpointer_attribute attr, uint64_t p)
{
	const struct allocation *a = memory_find_locked(p);
	uint64_t base, size;

	if (!a)
		return reserved(data, attr, p);
	range(a, &base, &size);
	switch (attr) {
	case CU_POINTER_ATTRIBUTE_CONTEXT:
		*(CUcontext *)data = (CUcontext)a->ctx;
		break;
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		*(unsigned *)data = type_of(a);
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
		*(CUdeviceptr *)data = p;
		break;
	case CU_POINTER_ATTRIBUTE_HOST_POINTER:
		if (a->kind != MEMORY_HOST && a->kind != MEMORY_REGISTERED && a->kind != MEMORY_MANAGED)
			return CUDA_ERROR_INVALID_VALUE;
		*(void **)data = (void *)(uintptr_t)p;
		break;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		*(unsigned *)data = a->sync_memops;
		break;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
	case CU_POINTER_ATTRIBUTE_MEMORY_BLOCK_ID:
		*(unsigned long long *)data = a->id;
		break;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*(unsigned *)data = a->kind == MEMORY_MANAGED;
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)data = a->device;
		break;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		*(unsigned *)data = a->kind == MEMORY_DEVICE;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*(CUdeviceptr *)data = base;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*(size_t *)data = size;
		break;
	case CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR:
		*(CUdeviceptr *)data = a->base;
		break;
	case CU_POINTER_ATTRIBUTE_MAPPING_SIZE:
		*(size_t *)data = a->size;
		break;
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
		*(CUmemAllocationHandleType *)data = handle_types(a);
		break;
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
	case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
		*(unsigned *)data = 0;
		break;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		*(unsigned *)data = 1;
		break;
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		*(unsigned *)data = access_flags(a);
		break;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		*(CUmemoryPool *)data = a->pool ? pool_handle(a->pool) : NULL;
		break;
	default:
		return CUDA_ERROR_NOT_SUPPORTED;
	}
	return CUDA_SUCCESS;
}

EXPORT CUresult cuPointerGetAttribute(void *data, CUpointer_attribute attr, CUdeviceptr p)
{
	CUresult r = enter();

	if (r)
		return r;
	if (!data)
		return CUDA_ERROR_INVALID_VALUE;
	lock();
	return leave(attribute(data, attr, p));
}

/* What an attribute is where it has no value. */
static void nothing(void *data, CUpointer_attribute attr)
{
	switch (attr) {
	case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
	case CU_POINTER_ATTRIBUTE_MAPPED:
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
	case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
	case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
	case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
		*(unsigned *)data = 0;
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)data = CU_DEVICE_INVALID;
		break;
	default:
		*(void **)data = NULL;
	}
}

/* An attribute that the address does not have is nothing, and that is no error. */
EXPORT CUresult cuPointerGetAttributes(unsigned int n, CUpointer_attribute *attrs, void **data, CUdeviceptr p)
{
	CUresult r = enter();

	if (r)
		return r;
	if (!attrs || !data)
		return CUDA_ERROR_INVALID_VALUE;
	lock();
	for (unsigned i = 0; i < n && !r; i++) {
		r = attribute(data[i], attrs[i], p);
		if (r == CUDA_ERROR_INVALID_VALUE) {
			nothing(data[i], attrs[i]);
			r = CUDA_SUCCESS;
		}
	}
	return leave(r);
}

EXPORT CUresult cuPointerSetAttribute(const void *value, CUpointer_attribute attr, CUdeviceptr p)
{
	CUresult r = enter();

	if (r)
		return r;
	if (!value || attr != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
		return CUDA_ERROR_INVALID_VALUE;
	lock();
	struct allocation *a = memory_find_locked(p);
	if (!a)
		return leave(CUDA_ERROR_INVALID_VALUE);
	a->sync_memops = *(const unsigned *)value != 0;
	return leave(CUDA_SUCCESS);
}
