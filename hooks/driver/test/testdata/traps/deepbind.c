/* SPDX-License-Identifier: Apache-2.0 */
/* The driver is loaded so that it finds its own symbols first. */
#include "loads.h"

int main(void)
{
	compute_with(must_load("libcuda.so.1", RTLD_NOW | RTLD_DEEPBIND));
	say("computes");
	return 0;
}
