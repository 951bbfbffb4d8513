/* SPDX-License-Identifier: Apache-2.0 */
/* The driver is loaded into a namespace of its own, with a C library of its own. */
#include "loads.h"

int main(void)
{
	void *library = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);

	if (!library)
		fprintf(stderr, "%s\n", dlerror());
	CHECK(library);
	compute_with(library);
	say("computes");
	return 0;
}
