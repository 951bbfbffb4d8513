/* SPDX-License-Identifier: Apache-2.0 */
/* The queue of a stream is finite: the call that finds it full waits for room. */
#include "test.h"

int main(int argc, char **argv)
{
	CUevent first;

	begin(argc, argv, 0);
	CUfunction spin = function("spin_us");
	OK(cuEventCreate(&first, CU_EVENT_DEFAULT));
	launch(spin, NULL, 1, 1, ARGS(&(unsigned){ 2000000 }));
	OK(cuEventRecord(first, NULL));
	for (int i = 0; i < 1000; i++)
		launch(spin, NULL, 1, 1, ARGS(&(unsigned){ 10 }));
	CHECK(cuEventQuery(first) == CUDA_ERROR_NOT_READY); /* there was room */
	for (int i = 0; i < 100; i++)
		launch(spin, NULL, 1, 1, ARGS(&(unsigned){ 10 }));
	OK(cuEventQuery(first)); /* there was none until it was over */
	OK(cuCtxSynchronize());
	return 0;
}
