/* SPDX-License-Identifier: Apache-2.0 */
/* What is known of an address. */
#include <string.h>

#include "sim.h"

static CUmemorytype type_of(const struct allocation *a)
{
	return a->kind == MEMORY_DEVICE || a->kind == MEMORY_MANAGED ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
}

static CUresult attribute(void *data, CUpointer_attribute attr, uint64_t p)
{
	const struct allocation *a = memory_find_locked(p);

	if (!a)
		return CUDA_ERROR_INVALID_VALUE;
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
		if (a->kind == MEMORY_DEVICE)
			return CUDA_ERROR_INVALID_VALUE;
		*(void **)data = (void *)(uintptr_t)p;
		break;
	case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		*(unsigned *)data = 0;
		break;
	case CU_POINTER_ATTRIBUTE_BUFFER_ID:
		*(unsigned long long *)data = a->id;
		break;
	case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		*(unsigned *)data = a->kind == MEMORY_MANAGED;
		break;
	case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
		*(int *)data = a->device;
		break;
	case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
		*(unsigned *)data = 0;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
		*(CUdeviceptr *)data = a->base;
		break;
	case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
		*(size_t *)data = a->size;
		break;
	case CU_POINTER_ATTRIBUTE_MAPPED:
		*(unsigned *)data = 1;
		break;
	case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
		*(unsigned *)data = 3; /* read and write */
		break;
	case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
		*(void **)data = NULL;
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

/* Of an unknown address all attributes are zero, and that is no error. */
EXPORT CUresult cuPointerGetAttributes(unsigned int n, CUpointer_attribute *attrs, void **data, CUdeviceptr p)
{
	CUresult r = enter();

	if (r)
		return r;
	if (!attrs || !data)
		return CUDA_ERROR_INVALID_VALUE;
	lock();
	bool known = memory_find_locked(p) != NULL;
	for (unsigned i = 0; i < n && !r; i++) {
		if (known) {
			r = attribute(data[i], attrs[i], p);
			if (r == CUDA_ERROR_INVALID_VALUE) {
				*(void **)data[i] = NULL;
				r = CUDA_SUCCESS;
			}
			continue;
		}
		switch (attrs[i]) {
		case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
		case CU_POINTER_ATTRIBUTE_IS_MANAGED:
		case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
		case CU_POINTER_ATTRIBUTE_MAPPED:
			*(unsigned *)data[i] = 0;
			break;
		case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
			*(int *)data[i] = -2;
			break;
		default:
			*(void **)data[i] = NULL;
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
	return leave(memory_find_locked(p) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE);
}
