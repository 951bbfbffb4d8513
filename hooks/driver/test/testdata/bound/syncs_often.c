/* SPDX-License-Identifier: Apache-2.0 */
/* syncs_often KERNELS ROUNDS LAUNCHES US: waits for its stream after a few launches each. */
#include "bound.h"

int main(int argc, char **argv)
{
	CUstream s;

	CHECK(argc > 4);
	begin(argc, argv, 0);
	CUfunction spin = function("spin_us");
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	ready();
	for (int i = 0; i < atoi(argv[2]); i++) {
		for (int n = 0; n < atoi(argv[3]); n++)
			launch(spin, s, 1, 1, ARGS(&(unsigned){ (unsigned)atoi(argv[4]) }));
		OK(cuStreamSynchronize(s));
	}
	done();
	return 0;
}
