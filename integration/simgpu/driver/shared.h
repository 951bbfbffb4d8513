/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What may be shared with other processes lies in memory files without a name.
 * Behind the contents a page says what the file is, for who gets its descriptor.
 */
#ifndef SIMGPU_SHARED_H
#define SIMGPU_SHARED_H

#include <stdbool.h>
#include <stdint.h>

#include "cuda_abi.h"

enum shared_kind { SHARED_ARENA = 1, SHARED_PHYSICAL };

struct shared_head {
	uint64_t magic;
	uint32_t kind; /* enum shared_kind */
	uint32_t gpu;  /* index in the machine, of device memory */
	uint32_t proc; /* who made it: sim_proc.id */
	uint32_t reserved;
	uint64_t size; /* of the contents: a multiple of the page size */
	CUmemAllocationProp prop; /* of physical memory */
};

/* The descriptor, or -1. Sets magic. */
int shared_new(const struct shared_head *head);
/* False: the descriptor is none of ours. */
bool shared_read(int fd, struct shared_head *head);

#endif
