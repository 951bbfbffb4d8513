/* SPDX-License-Identifier: Apache-2.0 */
/* Vector add: copies both ways, a kernel with a body, events, a second stream in order. */
#include "test.h"

#define N 4096

int main(int argc, char **argv)
{
	CUcontext ctx = begin(argc, argv, 0);
	CUfunction add = function("vec_add_f32"), fill = function("fill_u32"), spin = function("spin_us");
	CUdeviceptr a, b, c;
	static float x[N], y[N], z[N];
	CUevent from, to;
	float ms;

	for (int i = 0; i < N; i++) {
		x[i] = (float)i;
		y[i] = (float)(2 * i);
	}
	OK(cuMemAlloc(&a, sizeof(x)));
	OK(cuMemAlloc(&b, sizeof(x)));
	OK(cuMemAlloc(&c, sizeof(x)));
	OK(cuMemcpyHtoD(a, x, sizeof(x)));
	OK(cuMemcpyHtoD(b, y, sizeof(x)));
	OK(cuMemsetD8(c, 0xff, sizeof(x)));
	launch(add, NULL, N / 256, 256, ARGS(&a, &b, &c, &(unsigned){ N }));
	OK(cuMemcpyDtoH(z, c, sizeof(z)));
	for (int i = 0; i < N; i++)
		CHECK(z[i] == (float)(3 * i));

	/* A stream keeps its order: the second fill is what is left. */
	CUstream s;
	unsigned *u = (unsigned *)z;
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuEventCreate(&from, CU_EVENT_DEFAULT));
	OK(cuEventCreate(&to, CU_EVENT_DEFAULT));
	OK(cuEventRecord(from, s));
	launch(fill, s, N / 256, 256, ARGS(&c, &(unsigned){ 1 }, &(unsigned){ N }));
	launch(spin, s, 1, 1, ARGS(&(unsigned){ 20000 }));
	launch(fill, s, N / 256, 256, ARGS(&c, &(unsigned){ 2 }, &(unsigned){ N }));
	hold(s);
	OK(cuEventRecord(to, s));
	CHECK(cuEventQuery(to) == CUDA_ERROR_NOT_READY);
	CHECK(cuStreamQuery(s) == CUDA_ERROR_NOT_READY);
	let_go();
	OK(cuMemcpyDtoHAsync(z, c, sizeof(z), s));
	OK(cuStreamSynchronize(s));
	OK(cuStreamQuery(s));
	OK(cuEventQuery(to));
	OK(cuEventElapsedTime(&ms, from, to));
	CHECK(ms >= 20.0f);
	for (int i = 0; i < N; i++)
		CHECK(u[i] == 2);
	/* Threads that the grid does not have write nothing. */
	launch(fill, NULL, 1, 32, ARGS(&c, &(unsigned){ 3 }, &(unsigned){ N }));
	OK(cuMemcpyDtoH(z, c, sizeof(z)));
	CHECK(u[31] == 3 && u[32] == 2);
	OK(cuEventDestroy(from));
	OK(cuEventDestroy(to));
	OK(cuStreamDestroy(s));
	OK(cuMemFree(a));
	OK(cuCtxDestroy(ctx));
	return 0;
}
