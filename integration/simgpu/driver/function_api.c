/* SPDX-License-Identifier: Apache-2.0 */
/* Attributes of functions and occupancy: plausible constants, nothing is measured. */
#include "module.h"
#include "resource.h"

#define MAX_BLOCK 1024
#define MAX_THREADS_SM 2048
#define MAX_BLOCKS_SM 32
#define SHARED_SM 167936

CUresult enter_function(CUfunction h, struct function **f)
{
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	*f = handle_get_locked(h, KIND_FUNCTION);
	if (!*f)
		r = kernel_function_locked(ctx, h, f);
	return r ? leave(CUDA_ERROR_INVALID_HANDLE) : CUDA_SUCCESS;
}

static CUresult attribute(CUfunction_attribute a, int *out)
{
	switch (a) {
	case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
		*out = MAX_BLOCK;
		break;
	case CU_FUNC_ATTRIBUTE_NUM_REGS:
		*out = 32;
		break;
	case CU_FUNC_ATTRIBUTE_PTX_VERSION:
		*out = 60;
		break;
	case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
		*out = 80;
		break;
	case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
		*out = 49152;
		break;
	case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
		*out = -1;
		break;
	default:
		if (a >= CU_FUNC_ATTRIBUTE_MAX)
			return CUDA_ERROR_INVALID_VALUE;
		*out = 0;
	}
	return CUDA_SUCCESS;
}

EXPORT CUresult cuFuncGetAttribute(int *out, CUfunction_attribute a, CUfunction h)
{
	struct function *f;
	CUresult r = enter_function(h, &f);

	if (r)
		return r;
	return leave(out ? attribute(a, out) : CUDA_ERROR_INVALID_VALUE);
}

EXPORT CUresult cuKernelGetAttribute(int *out, CUfunction_attribute a, CUkernel h, CUdevice dev)
{
	CUresult r = enter();

	if (r)
		return r;
	lock();
	if (!device_ok(dev))
		return leave(CUDA_ERROR_INVALID_DEVICE);
	if (!handle_get_locked(h, KIND_KERNEL))
		return leave(CUDA_ERROR_INVALID_HANDLE);
	return leave(out ? attribute(a, out) : CUDA_ERROR_INVALID_VALUE);
}

static CUresult only_function(CUfunction h)
{
	struct function *f;
	CUresult r = enter_function(h, &f);

	return r ? r : leave(CUDA_SUCCESS);
}

EXPORT CUresult cuFuncSetAttribute(CUfunction h, CUfunction_attribute a, int value)
{
	(void)a;
	(void)value;
	return only_function(h);
}

EXPORT CUresult cuFuncSetCacheConfig(CUfunction h, CUfunc_cache config)
{
	(void)config;
	return only_function(h);
}

EXPORT CUresult cuFuncSetSharedMemConfig(CUfunction h, CUsharedconfig config)
{
	(void)config;
	return only_function(h);
}

EXPORT CUresult cuFuncLoad(CUfunction h)
{
	return only_function(h);
}

EXPORT CUresult cuFuncIsLoaded(CUfunctionLoadingState *state, CUfunction h)
{
	if (!state)
		return CUDA_ERROR_INVALID_VALUE;
	*state = CU_FUNCTION_LOADING_STATE_LOADED;
	return only_function(h);
}

EXPORT CUresult cuFuncGetModule(CUmodule *out, CUfunction h)
{
	struct function *f;
	CUresult r = enter_function(h, &f);

	if (r)
		return r;
	if (!out)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*out = (CUmodule)f->module;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuFuncGetName(const char **out, CUfunction h)
{
	struct function *f;
	CUresult r = enter_function(h, &f);

	if (r)
		return r;
	if (!out)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*out = f->entry->name;
	return leave(CUDA_SUCCESS);
}

static CUresult param_info(CUfunction h, size_t i, size_t *offset, size_t *size)
{
	struct function *f;
	CUresult r = enter_function(h, &f);

	if (r)
		return r;
	if (!offset || i >= f->entry->n_params)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*offset = f->entry->params[i].offset;
	if (size)
		*size = f->entry->params[i].size;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuFuncGetParamInfo(CUfunction h, size_t i, size_t *offset, size_t *size)
{
	return param_info(h, i, offset, size);
}

EXPORT CUresult cuKernelGetParamInfo(CUkernel h, size_t i, size_t *offset, size_t *size)
{
	return param_info((CUfunction)h, i, offset, size);
}

static CUresult blocks(int *out, CUfunction h, int block, size_t shared)
{
	struct function *f;
	CUresult r = enter_function(h, &f);

	if (r)
		return r;
	if (!out || block <= 0)
		return leave(CUDA_ERROR_INVALID_VALUE);
	int n = block > MAX_BLOCK ? 0 : MAX_THREADS_SM / ((block + 31) / 32 * 32);
	if (n > MAX_BLOCKS_SM)
		n = MAX_BLOCKS_SM;
	if (shared && (size_t)n > SHARED_SM / (shared + 1024))
		n = (int)(SHARED_SM / (shared + 1024));
	*out = n;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *out, CUfunction h, int block, size_t shared)
{
	return blocks(out, h, block, shared);
}

EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int *out, CUfunction h, int block, size_t shared, unsigned int flags)
{
	return flags > 1 ? CUDA_ERROR_INVALID_VALUE : blocks(out, h, block, shared);
}

static CUresult block_size(int *grid, int *block, CUfunction h, int limit)
{
	struct function *f;
	CUresult r = enter_function(h, &f);

	if (r)
		return r;
	if (!grid || !block || limit < 0)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*block = limit && limit < MAX_BLOCK ? limit : MAX_BLOCK;
	*grid = SMS * (MAX_THREADS_SM / *block > MAX_BLOCKS_SM ? MAX_BLOCKS_SM : MAX_THREADS_SM / *block);
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuOccupancyMaxPotentialBlockSize(int *grid, int *block, CUfunction h, CUoccupancyB2DSize shared_of, size_t shared, int limit)
{
	(void)shared_of;
	(void)shared;
	return block_size(grid, block, h, limit);
}

EXPORT CUresult cuOccupancyMaxPotentialBlockSizeWithFlags(int *grid, int *block, CUfunction h, CUoccupancyB2DSize shared_of,
							  size_t shared, int limit, unsigned int flags)
{
	(void)shared_of;
	(void)shared;
	return flags > 1 ? CUDA_ERROR_INVALID_VALUE : block_size(grid, block, h, limit);
}
