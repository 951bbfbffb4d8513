/* SPDX-License-Identifier: Apache-2.0 */
/* A program that waits for its stream after a few launches each. */
#include "bound.h"

int main(int argc, char **argv)
{
	CUstream s;

	begin(argc, argv, 0);
	CUfunction spin = function("spin_us");
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	ready();
	for (int i = 0; i < 100; i++) {
		for (int n = 0; n < 15; n++)
			launch(spin, s, 1, 1, ARGS(&(unsigned){ 10 }));
		OK(cuStreamSynchronize(s));
	}
	done();
	return 0;
}
