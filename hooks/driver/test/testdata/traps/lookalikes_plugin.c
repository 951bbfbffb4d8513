/* SPDX-License-Identifier: Apache-2.0 */
/* A library of such names, beside the driver. */
#include "lookalikes.h"

#define DEFINE(name) \
	const char *name(void); \
	const char *name(void) \
	{ \
		return #name; \
	}

LOOKALIKES(DEFINE)
