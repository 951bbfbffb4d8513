/* SPDX-License-Identifier: Apache-2.0 */
/* The driver is closed and opened again. */
#include "loads.h"

int main(void)
{
	for (int i = 0; i < 3; i++) {
		void *library = must_load("libcuda.so.1", RTLD_NOW);

		compute_with(library);
		CHECK(dlclose(library) == 0);
		say("closed");
	}
	return 0;
}
