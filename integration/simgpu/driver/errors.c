/* SPDX-License-Identifier: Apache-2.0 */
#include "sim.h"

static const struct {
	CUresult result;
	const char *name, *text;
} errors[] = {
#define X(result, text) { result, #result, text },
#include "errors.inc"
#undef X
};

static long find(CUresult r)
{
	for (unsigned long i = 0; i < sizeof(errors) / sizeof(errors[0]); i++)
		if (errors[i].result == r)
			return (long)i;
	return -1;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char **out)
{
	long i = find(error);

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = i < 0 ? NULL : errors[i].name;
	return i < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorString(CUresult error, const char **out)
{
	long i = find(error);

	if (!out)
		return CUDA_ERROR_INVALID_VALUE;
	*out = i < 0 ? NULL : errors[i].text;
	return i < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}
