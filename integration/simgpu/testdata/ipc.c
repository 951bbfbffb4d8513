/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ipc KERNELS give FILE: writes handles of memory and of two events into FILE,
 * says "running", and checks at the end of its input what the other one did.
 * ipc KERNELS take FILE: opens them, looks and writes.
 * ipc KERNELS gone FILE: finds that the giver is not there any more.
 */
#include "test.h"

struct handles {
	CUipcMemHandle memory;
	CUipcEventHandle ready, written;
};

static void expect(CUdeviceptr p, unsigned value)
{
	unsigned got = 0;

	OK(cuMemcpyDtoH(&got, p, sizeof(got)));
	CHECK(got == value);
}

static void give(const char *file)
{
	struct handles h;
	CUdeviceptr first, p, pinned, same;
	CUevent ready, written, again;
	CUstream s;
	FILE *f = fopen(file, "w");

	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	OK(cuMemAlloc(&first, 700)); /* so that the other one does not begin a page */
	OK(cuMemAlloc(&p, 10000));
	OK(cuEventCreate(&ready, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
	OK(cuEventCreate(&written, CU_EVENT_INTERPROCESS | CU_EVENT_DISABLE_TIMING));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuEventCreate(&again, CU_EVENT_INTERPROCESS));
	OK(cuIpcGetMemHandle(&h.memory, p));
	OK(cuIpcGetEventHandle(&h.ready, ready));
	OK(cuIpcGetEventHandle(&h.written, written));
	OK(cuMemAllocHost((void **)&pinned, 4096));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcGetMemHandle(&h.memory, pinned));
	GIVES(CUDA_ERROR_INVALID_CONTEXT, cuIpcOpenMemHandle(&same, h.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	OK(cuEventCreate(&again, CU_EVENT_DISABLE_TIMING));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcGetEventHandle(&h.written, again));

	/* What the other one waits for is not there yet when it opens the handles. */
	OK(cuMemsetD32(p, 0, 2500));
	OK(cuCtxSynchronize());
	hold(s);
	OK(cuMemsetD32Async(p, 61, 2500, s));
	OK(cuEventRecord(ready, s));
	CHECK(f && fwrite(&h, sizeof(h), 1, f) == 1 && fclose(f) == 0);
	puts("running");
	fflush(stdout);
	/* The first line says that the other one has seen it. */
	CHECK(getchar() == '\n');
	let_go();
	while (getchar() != EOF)
		;
	OK(cuEventSynchronize(written));
	expect(p + 9996, 62);
	expect(p, 61);
}

static void take(const char *file)
{
	struct handles h;
	CUdeviceptr p, again;
	CUevent ready, written;
	CUstream s;
	FILE *f = fopen(file, "r");

	CHECK(f && fread(&h, sizeof(h), 1, f) == 1 && fclose(f) == 0);
	OK(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcOpenMemHandle(&p, h.memory, 0));
	OK(cuIpcOpenMemHandle(&p, h.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	OK(cuIpcOpenMemHandle(&again, h.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
	CHECK(p == again);
	OK(cuIpcOpenEventHandle(&ready, h.ready));
	OK(cuIpcOpenEventHandle(&written, h.written));
	GIVES(CUDA_ERROR_NOT_READY, cuEventQuery(ready));
	expect(p, 0);
	OK(cuStreamWaitEvent(s, ready, 0));
	OK(cuMemsetD32Async(p + 9996, 62, 1, s));
	OK(cuEventRecord(written, s));
	GIVES(CUDA_ERROR_NOT_READY, cuStreamQuery(s));
	puts("running");
	fflush(stdout);
	OK(cuEventSynchronize(ready));
	OK(cuStreamSynchronize(s));
	expect(p, 61);
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMemFree(p));
	OK(cuIpcCloseMemHandle(p));
	expect(p + 9996, 62);
	OK(cuIpcCloseMemHandle(p));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcCloseMemHandle(p));
	OK(cuEventDestroy(ready));
	OK(cuEventDestroy(written));
}

static void gone(const char *file)
{
	struct handles h;
	CUdeviceptr p;
	FILE *f = fopen(file, "r");

	CHECK(f && fread(&h, sizeof(h), 1, f) == 1 && fclose(f) == 0);
	CHECK(cuIpcOpenMemHandle(&p, h.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) != CUDA_SUCCESS);
	memset(&h, 1, sizeof(h));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuIpcOpenMemHandle(&p, h.memory, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS));
}

int main(int argc, char **argv)
{
	begin(argc, argv, 0);
	CHECK(argc == 4);
	if (strcmp(argv[2], "give") == 0)
		give(argv[3]);
	else if (strcmp(argv[2], "take") == 0)
		take(argv[3]);
	else
		gone(argv[3]);
	return 0;
}
