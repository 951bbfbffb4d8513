/* SPDX-License-Identifier: Apache-2.0 */
/* Every other name that the real library exports: NOT_SUPPORTED. Weak, as in driver/stubs.c. */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#define NOT_SUPPORTED 3

static int unimplemented(const char *name, atomic_uint *calls)
{
	if (atomic_fetch_add_explicit(calls, 1, memory_order_relaxed) == 0 && getenv("SIMGPU_DEBUG"))
		fprintf(stderr, "simgpu: %s is not simulated\n", name);
	return NOT_SUPPORTED;
}

#define X(name)                                                                                                        \
	int name(void);                                                                                                \
	__attribute__((weak, visibility("default"))) int name(void)                                                    \
	{                                                                                                              \
		static atomic_uint calls;                                                                              \
                                                                                                                       \
		return unimplemented(#name, &calls);                                                                   \
	}
#include "names.inc"
#undef X
