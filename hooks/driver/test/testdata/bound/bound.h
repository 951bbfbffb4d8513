/* SPDX-License-Identifier: Apache-2.0 */
/* The programs of this folder run on the simulated driver; what they share is its
 * own test.h. They talk with the Go test as the others do. */
#ifndef BOUND_H
#define BOUND_H

#include "test.h"

static inline void ready(void)
{
	char line[64];

	puts("ready");
	fflush(stdout);
	CHECK(fgets(line, sizeof(line), stdin));
}

static inline void done(void)
{
	puts("done");
	fflush(stdout);
}

#endif
