/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel spins until another one runs, which the same thread launches after many
 * others. */
#include "bound.h"

int main(int argc, char **argv)
{
	CUstream one, two;
	CUdeviceptr p;

	begin(argc, argv, 0);
	CUfunction meet = function("meet"), spin = function("spin_us");
	OK(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&two, CU_STREAM_NON_BLOCKING));
	OK(cuMemAlloc(&p, sizeof(unsigned)));
	OK(cuMemsetD32(p, 0, 1));
	ready();
	launch(meet, one, 1, 1, ARGS(&p, &(unsigned){ 2 }));
	for (int i = 0; i < 300; i++)
		launch(spin, one, 1, 1, ARGS(&(unsigned){ 10 }));
	launch(meet, two, 1, 1, ARGS(&p, &(unsigned){ 2 }));
	OK(cuCtxSynchronize());
	done();
	return 0;
}
