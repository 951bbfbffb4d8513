/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuGetProcAddress: from the name without suffix, the version that the caller
 * was built for, and the default-stream flavour, to a function.
 *
 * A real driver need not answer with the address that it exports under the
 * name, and whoever translates addresses must cope. Hence a few answers here
 * are functions of their own (aliases, README.md).
 */
#include <stdlib.h>
#include <string.h>

#include "sim.h"

struct symbol {
	const char *base;
	int version;
	const char *flavour;
	void *fn;
};

/* Sorted by base, flavour, version. */
static const struct symbol symbols[] = {
#define X(base, version, flavour, name) { #base, version, flavour, (void *)name },
#include "versions.inc"
#undef X
};

#define N_SYMBOLS (sizeof(symbols) / sizeof(symbols[0]))

static CUresult alias_event_query(CUevent e)
{
	return cuEventQuery(e);
}

static CUresult alias_memset(CUdeviceptr d, unsigned int v, size_t n, CUstream s)
{
	return cuMemsetD32Async(d, v, n, s);
}

static CUresult alias_copy(void *to, CUdeviceptr from, size_t n, CUstream s)
{
	return cuMemcpyDtoHAsync_v2_ptsz(to, from, n, s);
}

static CUresult alias_cooperative(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
				  unsigned shared, CUstream s, void **params)
{
	return cuLaunchCooperativeKernel(f, gx, gy, gz, bx, by, bz, shared, s, params);
}

static const struct {
	void *exported, *answer;
} aliases[] = {
	{ (void *)cuEventQuery, (void *)alias_event_query },
	{ (void *)cuMemsetD32Async, (void *)alias_memset },
	{ (void *)cuMemcpyDtoHAsync_v2_ptsz, (void *)alias_copy },
	{ (void *)cuLaunchCooperativeKernel, (void *)alias_cooperative },
};

static void *answer(void *fn)
{
	for (size_t i = 0; i < sizeof(aliases) / sizeof(aliases[0]); i++)
		if (aliases[i].exported == fn)
			return aliases[i].answer;
	return fn;
}

static size_t first_of(const char *base)
{
	size_t lo = 0, hi = N_SYMBOLS;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (strcmp(symbols[mid].base, base) < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

static CUdriverProcAddressQueryResult find(const char *base, int version, bool per_thread, void **fn)
{
	CUdriverProcAddressQueryResult r = CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
	const struct symbol *best = NULL;

	for (size_t i = first_of(base); i < N_SYMBOLS && strcmp(symbols[i].base, base) == 0; i++) {
		const struct symbol *s = &symbols[i];

		if (s->version > SIM_CUDA_VERSION || (*s->flavour && !per_thread))
			continue; /* a later driver's, or of the other flavour */
		if (s->version > version) {
			if (!best)
				r = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
			continue;
		}
		/* The flavour asked for beats the plain one, then the newest. */
		if (!best || strcmp(s->flavour, best->flavour) >= 0)
			best = s;
	}
	if (!best)
		return r;
	*fn = answer(best->fn);
	return CU_GET_PROC_ADDRESS_SUCCESS;
}

static CUresult get(const char *symbol, void **fn, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status,
		    bool per_thread)
{
	CUdriverProcAddressQueryResult r;

	if (!symbol || !fn || version > SIM_CUDA_VERSION || version < 0 || flags > 2)
		return CUDA_ERROR_INVALID_VALUE;
	if (flags)
		per_thread = flags == CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
	*fn = NULL;
	r = find(symbol, version, per_thread, fn);
	if (status)
		*status = r;
	else if (r != CU_GET_PROC_ADDRESS_SUCCESS)
		return CUDA_ERROR_NOT_FOUND;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuGetProcAddress(const char *symbol, void **fn, int version, cuuint64_t flags)
{
	return get(symbol, fn, version, flags, NULL, false);
}

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **fn, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
	return get(symbol, fn, version, flags, status, false);
}

EXPORT CUresult cuGetProcAddress_v2_ptsz(const char *symbol, void **fn, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
	return get(symbol, fn, version, flags, status, true);
}
