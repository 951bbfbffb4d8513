/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Resources of devices: multiprocessors, to be counted and divided. The engine
 * runs one kernel at a time, so a part of them makes no kernel slower.
 */
#include <stdlib.h>
#include <string.h>

#include "resource.h"

#define SMALLEST 4u /* of an 8.x GPU, and the sizes are multiples of 2 */
#define STEP 2u
#define MARK 0x53454d5547504d49ull

/* What we keep in the part of a resource that is the driver's own. */
struct own {
	uint64_t mark;
	int32_t device;
	uint32_t first; /* multiprocessor */
};

static void set_own(CUdevResource *r, const struct own *o)
{
	memcpy(r->_internal_padding, o, sizeof(*o));
}

static bool get_own(const CUdevResource *r, struct own *o)
{
	memcpy(o, r->_internal_padding, sizeof(*o));
	return r->type == CU_DEV_RESOURCE_TYPE_SM && o->mark == MARK && device_ok(o->device);
}

static CUdevResource part(const struct own *o, uint32_t first, uint32_t n)
{
	CUdevResource r = { .type = CU_DEV_RESOURCE_TYPE_SM,
			    .sm = { .smCount = n, .minSmPartitionSize = SMALLEST, .smCoscheduledAlignment = STEP } };

	set_own(&r, &(struct own){ MARK, o->device, first });
	return r;
}

CUdevResource resource_of_device(CUdevice dev)
{
	return part(&(struct own){ .device = dev }, 0, SMS);
}

EXPORT CUresult cuDeviceGetDevResource(CUdevice dev, CUdevResource *out, CUdevResourceType type)
{
	CUresult r = enter();

	if (r)
		return r;
	if (!device_ok(dev))
		return CUDA_ERROR_INVALID_DEVICE;
	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	if (type != CU_DEV_RESOURCE_TYPE_SM)
		return CUDA_ERROR_INVALID_RESOURCE_TYPE;
	*out = resource_of_device(dev);
	return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetDevResource(CUcontext h, CUdevResource *out, CUdevResourceType type)
{
	CUresult r = enter();

	if (r)
		return r;
	lock();
	const struct context *ctx = context_get_locked(h);
	if (!ctx || !out)
		return leave(ctx ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_CONTEXT);
	if (type != CU_DEV_RESOURCE_TYPE_SM)
		return leave(CUDA_ERROR_INVALID_RESOURCE_TYPE);
	*out = resource_of_device(ctx->device);
	return leave(CUDA_SUCCESS);
}

/* Groups of equal size. Without result: how many there can be. */
EXPORT CUresult cuDevSmResourceSplitByCount(CUdevResource *result, unsigned int *n, const CUdevResource *input, CUdevResource *rest,
					    unsigned int flags, unsigned int min)
{
	uint32_t smallest = flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING ? STEP : SMALLEST;
	CUresult r = enter();
	struct own own;

	if (r)
		return r;
	if (!n || !input || flags & ~3u)
		return CUDA_ERROR_INVALID_VALUE;
	if (!get_own(input, &own))
		return CUDA_ERROR_INVALID_RESOURCE_TYPE;
	if (min > input->sm.smCount)
		return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
	uint32_t size = min < smallest ? smallest : (min + STEP - 1) / STEP * STEP;
	uint32_t most = input->sm.smCount / size;
	uint32_t groups = result && *n < most ? *n : most;
	for (uint32_t i = 0; result && i < groups; i++)
		result[i] = part(&own, own.first + i * size, size);
	*n = groups;
	uint32_t left = input->sm.smCount - groups * size;
	if (rest && result)
		*rest = left ? part(&own, own.first + groups * size, left) : (CUdevResource){ 0 };
	return CUDA_SUCCESS;
}

/* Groups of the sizes asked for; 0 takes what is left. */
EXPORT CUresult cuDevSmResourceSplit(CUdevResource *result, unsigned int n, const CUdevResource *input, CUdevResource *rest,
				     unsigned int flags, CU_DEV_SM_RESOURCE_GROUP_PARAMS *groups)
{
	CUresult r = enter();
	struct own own;
	uint32_t used = 0;

	if (r)
		return r;
	if (!n || !input || !groups || flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (!get_own(input, &own))
		return CUDA_ERROR_INVALID_RESOURCE_TYPE;
	for (unsigned i = 0; i < n; i++) {
		uint32_t left = input->sm.smCount - used;
		uint32_t size = groups[i].smCount ? groups[i].smCount : left / STEP * STEP;

		if (size < STEP || size % STEP || size > left)
			return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
		if (result)
			result[i] = part(&own, own.first + used, size);
		groups[i].smCount = size;
		used += size;
	}
	if (rest)
		*rest = used < input->sm.smCount ? part(&own, own.first + used, input->sm.smCount - used) : (CUdevResource){ 0 };
	return CUDA_SUCCESS;
}

/* Several resources of one device become one description. */
EXPORT CUresult cuDevResourceGenerateDesc(CUdevResourceDesc *out, CUdevResource *in, unsigned int n)
{
	CUresult r = enter();
	struct own first, own;
	uint32_t sms = 0;

	if (r)
		return r;
	if (!out || !in || !n)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < n; i++) {
		if (!get_own(&in[i], &own))
			return CUDA_ERROR_INVALID_RESOURCE_TYPE;
		if (i == 0)
			first = own;
		sms += in[i].sm.smCount;
		if (own.device != first.device || sms > SMS)
			return CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION;
	}
	struct resources *d = calloc(1, sizeof(*d));
	if (!d)
		return CUDA_ERROR_OUT_OF_MEMORY;
	d->device = first.device;
	d->sm = part(&first, first.first, sms);
	lock();
	handle_add_locked(d, KIND_RESOURCES);
	*out = (CUdevResourceDesc)d;
	return leave(CUDA_SUCCESS);
}
