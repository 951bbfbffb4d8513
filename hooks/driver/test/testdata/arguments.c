/* SPDX-License-Identifier: Apache-2.0 */
/* Every argument reaches the driver, in the call that finds the function and in
 * the next one. */
#include <stdio.h>
#include <stdlib.h>

#include "arguments.h"

int main(void)
{
	struct large l;
	double d;

	for (int round = 0; round < 2; round++) {
		d = cuProfilerInitialize(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1);
		if (d != 2047 + 511.0 / 512) {
			fprintf(stderr, "call %d: the driver got arguments that sum up to %f\n", round, d);
			return 1;
		}
		l = cuSurfRefSetArray(1, 2);
		for (long i = 0; i < 9; i++) {
			if (l.value[i] != i + 1) {
				fprintf(stderr, "call %d: the driver's result has %ld at %ld\n", round, l.value[i], i);
				return 1;
			}
		}
	}
	puts("done");
	return 0;
}
