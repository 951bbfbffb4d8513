/* SPDX-License-Identifier: Apache-2.0 */
/* Reserved addresses: ranges in which the program maps physical memory. */
#include <stdlib.h>

#include "memory.h"

struct reservation {
	uint64_t at, size;
	struct reservation *next;
};

static struct reservation *reservations;

static struct reservation **find(uint64_t at, uint64_t size)
{
	struct reservation **r = &reservations;

	while (*r && (at < (*r)->at || at - (*r)->at >= (*r)->size || size > (*r)->size - (at - (*r)->at)))
		r = &(*r)->next;
	return r;
}

bool reserve_find_locked(uint64_t at, uint64_t size, uint64_t *base, uint64_t *whole)
{
	const struct reservation *r = *find(at, size);

	if (!r)
		return false;
	*base = r->at;
	*whole = r->size;
	return true;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr *out, size_t size, size_t align, CUdeviceptr wish, unsigned long long flags)
{
	uint64_t from = clock_ns();
	CUresult r = enter();

	if (r)
		return r;
	if (!out || size == 0 || size % VMM_PAGE || align & (align - 1) || flags)
		return CUDA_ERROR_INVALID_VALUE;
	if (align < VMM_PAGE)
		align = VMM_PAGE;
	struct reservation *n = calloc(1, sizeof(*n));
	if (!n)
		return CUDA_ERROR_OUT_OF_MEMORY;
	n->size = size;
	lock();
	if (!window_take_locked(size, align, wish % align ? 0 : wish, &n->at)) {
		free(n);
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	}
	n->next = reservations;
	reservations = n;
	*out = n->at;
	log_setup("cuMemAddressReserve", NULL, NULL, from);
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr at, size_t size)
{
	uint64_t from = clock_ns();
	CUresult r = enter();

	if (r)
		return r;
	lock();
	struct reservation **p = find(at, 1), *n = *p;
	if (!n || n->at != at || n->size != size || memory_any_locked(at, size))
		return leave(CUDA_ERROR_INVALID_VALUE);
	*p = n->next;
	window_give_locked(n->at, n->size);
	free(n);
	log_setup("cuMemAddressFree", NULL, NULL, from);
	return leave(CUDA_SUCCESS);
}
