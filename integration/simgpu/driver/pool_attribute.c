/* SPDX-License-Identifier: Apache-2.0 */
/* What can be read of a pool, and set. */
#include "pool.h"

/* A mark can only be put back to what there is now, by setting it to 0. */
static CUresult reset(uint64_t *mark, uint64_t now, const void *value)
{
	if (*(const cuuint64_t *)value)
		return CUDA_ERROR_INVALID_VALUE;
	*mark = now;
	return CUDA_SUCCESS;
}

static CUresult set_switch(int *to, const void *value)
{
	*to = *(const int *)value != 0;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolSetAttribute(CUmemoryPool h, CUmemPool_attribute a, void *value)
{
	struct pool *p;
	CUresult r = enter_pool(h, &p);

	if (r)
		return r;
	if (!value)
		return leave(CUDA_ERROR_INVALID_VALUE);
	switch (a) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
		return leave(set_switch(&p->follow_events, value));
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
		return leave(set_switch(&p->opportunistic, value));
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		return leave(set_switch(&p->internal, value));
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		p->threshold = *(cuuint64_t *)value;
		return leave(CUDA_SUCCESS);
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		return leave(reset(&p->reserved_high, p->reserved, value));
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		return leave(reset(&p->used_high, p->used, value));
	default:
		return leave(CUDA_ERROR_INVALID_VALUE);
	}
}

/* Whether the attribute is a number of 64 bits, and which. */
static bool number(const struct pool *p, CUmemPool_attribute a, cuuint64_t *out)
{
	switch (a) {
	case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
		*out = p->threshold;
		return true;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
		*out = p->reserved;
		return true;
	case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
		*out = p->reserved_high;
		return true;
	case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
		*out = p->used;
		return true;
	case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
		*out = p->used_high;
		return true;
	case CU_MEMPOOL_ATTR_MAX_POOL_SIZE:
		*out = p->props.maxSize;
		return true;
	default:
		return false;
	}
}

static CUresult small(const struct pool *p, CUmemPool_attribute a, int *out)
{
	switch (a) {
	case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
		*out = p->follow_events;
		break;
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
		*out = p->opportunistic;
		break;
	case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
		*out = p->internal;
		break;
	case CU_MEMPOOL_ATTR_ALLOCATION_TYPE:
		*out = (int)p->props.allocType;
		break;
	case CU_MEMPOOL_ATTR_EXPORT_HANDLE_TYPES:
		*out = (int)p->props.handleTypes;
		break;
	case CU_MEMPOOL_ATTR_LOCATION_ID:
		*out = p->device;
		break;
	case CU_MEMPOOL_ATTR_LOCATION_TYPE:
		*out = CU_MEM_LOCATION_TYPE_DEVICE;
		break;
	case CU_MEMPOOL_ATTR_HW_DECOMPRESS_ENABLED:
		*out = 0;
		break;
	default:
		return CUDA_ERROR_INVALID_VALUE;
	}
	return CUDA_SUCCESS;
}

EXPORT CUresult cuMemPoolGetAttribute(CUmemoryPool h, CUmemPool_attribute a, void *value)
{
	struct pool *p;
	CUresult r = enter_pool(h, &p);

	if (r)
		return r;
	if (!value)
		return leave(CUDA_ERROR_INVALID_VALUE);
	return leave(number(p, a, value) ? CUDA_SUCCESS : small(p, a, value));
}
