/* SPDX-License-Identifier: Apache-2.0 */
/* A graph that is uploaded as it is made, behind something that holds its stream. The Go test plays vgpud. */
#include "test.h"

int main(void)
{
	CUDA_GRAPH_INSTANTIATE_PARAMS params = { .flags = CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD };
	CUgraphExec plain, uploaded;
	CUgraphNode node;
	CUcontext ctx;
	CUgraph graph;
	unsigned *word;

	OK(cuInit(0));
	OK(cuCtxCreate(&ctx, NULL, 0, 0));
	OK(cuStreamCreate(&params.hUploadStream, CU_STREAM_NON_BLOCKING));
	OK(cuMemAllocHost((void **)&word, sizeof(*word)));
	*word = 0;
	OK(cuGraphCreate(&graph, 0));
	OK(cuGraphAddEmptyNode(&node, graph, NULL, 0));
	OK(cuGraphInstantiateWithParams(&plain, graph, &(CUDA_GRAPH_INSTANTIATE_PARAMS){ .flags = 0 }));
	OK(cuStreamWaitValue32(params.hUploadStream, (CUdeviceptr)(uintptr_t)word, 1, CU_STREAM_WAIT_VALUE_GEQ));
	say("made without an upload");
	OK(cuGraphInstantiateWithParams(&uploaded, graph, &params));
	say("uploading");
	await();
	usleep(20000); /* for a library that takes the turn for over */
	__atomic_store_n(word, 1, __ATOMIC_RELEASE);
	await();
	say("done");
	return 0;
}
