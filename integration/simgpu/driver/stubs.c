/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every name that the real driver exports is there. These definitions are weak:
 * a function that is written somewhere else takes the place of its stub. The
 * prototypes do not matter here, so this file does not see them.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#define NOT_SUPPORTED 801

static const char *const names[] = {
#define X(name, class, known) #name,
#include "../exports.inc"
#undef X
};

enum {
#define X(name, class, known) INDEX_##name,
#include "../exports.inc"
#undef X
	COUNT
};

static atomic_uint calls[COUNT];

static int unimplemented(int i)
{
	if (atomic_fetch_add_explicit(&calls[i], 1, memory_order_relaxed) == 0 && getenv("SIMGPU_DEBUG"))
		fprintf(stderr, "simgpu: %s is not simulated\n", names[i]);
	return NOT_SUPPORTED;
}

#define X(name, class, known)                                                                                          \
	int name(void);                                                                                                \
	__attribute__((weak, visibility("default"))) int name(void)                                                    \
	{                                                                                                              \
		return unimplemented(INDEX_##name);                                                                    \
	}
#include "../exports.inc"
#undef X
