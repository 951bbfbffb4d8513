/* SPDX-License-Identifier: Apache-2.0 */
/* spin KERNELS COUNT US: COUNT launches of spin_us, then a wait. */
#include "test.h"

int main(int argc, char **argv)
{
	begin(argc, argv, 0);
	CUfunction f = function("spin_us");
	unsigned count = (unsigned)atoi(argv[2]), us = (unsigned)atoi(argv[3]);

	for (unsigned i = 0; i < count; i++)
		launch(f, NULL, 1, 1, ARGS(&us));
	OK(cuCtxSynchronize());
	return 0;
}
