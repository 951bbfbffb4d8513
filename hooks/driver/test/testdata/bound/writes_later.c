/* SPDX-License-Identifier: Apache-2.0 */
/* A stream waits for a value that the same thread writes after it has submitted
 * much behind the wait: by another stream, then by itself. */
#include "bound.h"

int main(int argc, char **argv)
{
	CUstream one, two;
	CUdeviceptr p;

	begin(argc, argv, 0);
	CUfunction spin = function("spin_us");
	OK(cuStreamCreate(&one, CU_STREAM_NON_BLOCKING));
	OK(cuStreamCreate(&two, CU_STREAM_NON_BLOCKING));
	OK(cuMemAlloc(&p, sizeof(unsigned)));
	OK(cuMemsetD32(p, 0, 1));
	ready();
	OK(cuStreamWaitValue32(one, p, 1, CU_STREAM_WAIT_VALUE_GEQ));
	for (int i = 0; i < 300; i++)
		launch(spin, one, 1, 1, ARGS(&(unsigned){ 10 }));
	OK(cuStreamWriteValue32(two, p, 1, 0));
	hold(one);
	for (int i = 0; i < 300; i++)
		launch(spin, one, 1, 1, ARGS(&(unsigned){ 10 }));
	let_go();
	OK(cuCtxSynchronize());
	done();
	return 0;
}
