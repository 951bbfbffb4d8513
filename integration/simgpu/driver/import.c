/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of another process, mapped here. It is counted there. */
#include "memory.h"

#define PAGE 4096ull

static uint64_t span(uint64_t offset, uint64_t size)
{
	uint64_t n = offset % PAGE + size;

	return (n + VMM_PAGE - 1) / VMM_PAGE * VMM_PAGE;
}

CUresult import_locked(const struct allocation *like, int fd, uint64_t offset, size_t size, uint64_t *address)
{
	uint64_t in = offset % PAGE, n = span(offset, size), mapped = (in + size + PAGE - 1) / PAGE * PAGE, at;
	struct allocation a = *like;

	if (!window_take_locked(n, VMM_PAGE, 0, &at))
		return CUDA_ERROR_OUT_OF_MEMORY;
	a.kind = MEMORY_IMPORTED;
	a.base = at + in;
	a.size = size;
	a.id = ++sim.next_id;
	a.opens = 1;
	if (!window_map_locked(at, mapped, fd, offset - in) || !memory_place_locked(&a)) {
		window_unmap_locked(at, n);
		window_give_locked(at, n);
		return CUDA_ERROR_MAP_FAILED;
	}
	*address = a.base;
	return CUDA_SUCCESS;
}

void import_end_locked(const struct allocation *a)
{
	uint64_t in = a->base % PAGE, n = span(in, a->size);

	window_unmap_locked(a->base - in, n);
	window_give_locked(a->base - in, n);
	if (a->pool)
		pool_pointer_end_locked(a->pool);
}

int device_of_gpu(uint32_t gpu)
{
	for (int d = 0; d < sim.n_devices; d++)
		if (sim.device[d] == gpu)
			return d;
	return -1;
}
