/* SPDX-License-Identifier: Apache-2.0 */
/* Green contexts: parts of a device, in its primary context. */
#include "test.h"

int main(int argc, char **argv)
{
	CUdevResource all, parts[2], rest, got;
	CUdevResourceDesc desc;
	CUcontext converted, none;
	CUgreenCtx a, b;
	CUstream s, t;
	CUevent e;
	CUdevice dev;
	CUdeviceptr p;
	unsigned n, v = 0;

	begin(argc, argv, 0);
	OK(cuCtxGetDevice(&dev));
	OK(cuDeviceGetDevResource(dev, &all, CU_DEV_RESOURCE_TYPE_SM));
	CHECK(all.sm.smCount >= 8);
	OK(cuDevSmResourceSplitByCount(NULL, &n, &all, NULL, 0, 8));
	CHECK(n == all.sm.smCount / 8);
	n = 2;
	OK(cuDevSmResourceSplitByCount(parts, &n, &all, &rest, 0, 8));
	CHECK(n == 2 && parts[0].sm.smCount >= 8 && parts[0].sm.smCount + parts[1].sm.smCount + rest.sm.smCount == all.sm.smCount);
	GIVES(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION, cuDevSmResourceSplitByCount(parts, &n, &all, &rest, 0, 100000));
	OK(cuDevResourceGenerateDesc(&desc, &parts[0], 1));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGreenCtxCreate(&a, desc, dev, 0)); /* the flag is wanted */
	OK(cuGreenCtxCreate(&a, desc, dev, CU_GREEN_CTX_DEFAULT_STREAM));
	OK(cuDevResourceGenerateDesc(&desc, &parts[1], 1));
	OK(cuGreenCtxCreate(&b, desc, dev, CU_GREEN_CTX_DEFAULT_STREAM));
	OK(cuGreenCtxGetDevResource(a, &got, CU_DEV_RESOURCE_TYPE_SM));
	CHECK(got.sm.smCount == parts[0].sm.smCount);

	OK(cuCtxFromGreenCtx(&converted, a));
	OK(cuCtxSetCurrent(converted));
	OK(cuMemAlloc(&p, 4));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGreenCtxStreamCreate(&s, a, CU_STREAM_DEFAULT, 0));
	OK(cuGreenCtxStreamCreate(&s, a, CU_STREAM_NON_BLOCKING, 0));
	OK(cuGreenCtxStreamCreate(&t, b, CU_STREAM_NON_BLOCKING, 0));
	CUgreenCtx of;
	OK(cuStreamGetCtx_v2(s, &none, &of));
	CHECK(of == a);
	OK(cuStreamGetDevResource(t, &got, CU_DEV_RESOURCE_TYPE_SM));
	CHECK(got.sm.smCount == parts[1].sm.smCount);

	/* What b's stream does waits for what a's streams have done, and for nothing else. */
	OK(cuEventCreate(&e, CU_EVENT_DISABLE_TIMING));
	hold(t);
	OK(cuGreenCtxRecordEvent(a, e));
	OK(cuEventSynchronize(e));
	let_go();
	hold(s);
	OK(cuMemsetD32Async(p, 5, 1, s));
	OK(cuGreenCtxRecordEvent(a, e));
	GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(e));
	OK(cuGreenCtxWaitEvent(b, e));
	OK(cuMemsetD32Async(p, 6, 1, t));
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(t));
	let_go();
	OK(cuStreamSynchronize(t));
	OK(cuMemcpyDtoH(&v, p, 4));
	CHECK(v == 6);

	OK(cuGreenCtxDestroy(b));
	GIVES(CUDA_ERROR_STREAM_DETACHED, cuStreamQuery(t));
	OK(cuStreamDestroy(t));
	OK(cuStreamSynchronize(s));
	OK(cuGreenCtxDestroy(a));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuGreenCtxGetDevResource(a, &got, CU_DEV_RESOURCE_TYPE_SM));
	return 0;
}
