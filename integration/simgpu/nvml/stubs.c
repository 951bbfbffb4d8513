/* SPDX-License-Identifier: Apache-2.0 */
/* Every other name that the real library exports: NOT_SUPPORTED. Weak, as in driver/stubs.c. */
#define NOT_SUPPORTED 3

#define X(name)                                                                                                        \
	int name(void);                                                                                                \
	__attribute__((weak, visibility("default"))) int name(void)                                                    \
	{                                                                                                              \
		return NOT_SUPPORTED;                                                                                  \
	}
#include "names.inc"
#undef X
