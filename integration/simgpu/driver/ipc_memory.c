/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory in two processes. It is counted with the one that allocated it. */
#include <unistd.h>

#include "ipc.h"
#include "memory.h"

static const struct allocation *find_id(const struct ipc_handle *h)
{
	const struct allocation *a = memory_find_locked(h->address);

	return a && a->id == h->id && a->kind == MEMORY_DEVICE ? a : NULL;
}

bool ipc_memory_locked(const struct ipc_handle *h, struct ipc_answer *answer, int *fd)
{
	const struct allocation *a = find_id(h);

	if (!a)
		return false;
	answer->gpu = a->gpu;
	answer->size = a->size;
	*fd = arena_file_locked(a->base, &answer->offset);
	return true;
}

EXPORT CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr p)
{
	uint64_t from = clock_ns();
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	const struct allocation *a = memory_find_locked(p);
	if (!out || !a || a->kind != MEMORY_DEVICE || a->graph)
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (!ipc_serve_locked())
		return leave(CUDA_ERROR_OPERATING_SYSTEM);
	ipc_handle_make(out, IPC_MEMORY, a->id, a->base);
	log_setup("cuIpcGetMemHandle", NULL, ctx, from);
	return leave(CUDA_SUCCESS);
}

static uint64_t source_of(const struct ipc_handle *h)
{
	return h->id << 32 | h->proc;
}

/* Opened before: the same pointer again, counted. */
static bool again(const struct context *ctx, uint64_t source, CUdeviceptr *out)
{
	for (struct allocation *a = memory_next_locked(0); a; a = memory_next_locked(a->base + 1))
		if (a->kind == MEMORY_IMPORTED && !a->pool && a->ctx == ctx && a->source == source) {
			a->opens++;
			*out = a->base;
			return true;
		}
	return false;
}

static CUresult map(struct context *ctx, const struct ipc_handle *h, const struct ipc_answer *answer, int fd, CUdeviceptr *out)
{
	uint64_t at;
	struct allocation like = { .ctx = ctx, .gpu = answer->gpu, .device = device_of_gpu(answer->gpu), .source = source_of(h) };

	if (like.device < 0)
		return CUDA_ERROR_INVALID_DEVICE;
	if (again(ctx, like.source, out)) /* another thread was quicker */
		return CUDA_SUCCESS;
	CUresult r = import_locked(&like, fd, answer->offset, answer->size, &at);
	if (!r)
		*out = at;
	return r;
}

/* Lets the mutex go while it asks. */
static CUresult open_locked(struct context *ctx, const struct ipc_handle *h, CUdeviceptr *out)
{
	struct ipc_answer answer;
	CUresult r;

	if (again(ctx, source_of(h), out))
		return CUDA_SUCCESS;
	unlock();
	int fd = ipc_ask(h, &answer);
	lock();
	if (fd < 0)
		return CUDA_ERROR_INVALID_HANDLE;
	r = ctx->destroyed ? CUDA_ERROR_CONTEXT_IS_DESTROYED : map(ctx, h, &answer, fd, out);
	close(fd);
	return r;
}

EXPORT CUresult cuIpcOpenMemHandle_v2(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags)
{
	uint64_t from = clock_ns();
	struct context *ctx;
	struct ipc_handle h;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	if (!out || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS || !ipc_handle_read(&handle, IPC_MEMORY, &h))
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (h.proc == sim.mc.id)
		return leave(CUDA_ERROR_INVALID_CONTEXT); /* not in the process that it comes from */
	r = open_locked(ctx, &h, out);
	log_setup("cuIpcOpenMemHandle", NULL, ctx, from);
	return leave(r);
}

EXPORT CUresult cuIpcOpenMemHandle(CUdeviceptr *out, CUipcMemHandle handle, unsigned int flags)
{
	return cuIpcOpenMemHandle_v2(out, handle, flags);
}

EXPORT CUresult cuIpcCloseMemHandle(CUdeviceptr p)
{
	uint64_t from = clock_ns();
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	context_sync_locked(ctx);
	struct allocation *a = memory_find_locked(p);
	if (!a || a->base != p || a->kind != MEMORY_IMPORTED || a->pool)
		return leave(CUDA_ERROR_INVALID_VALUE);
	if (--a->opens == 0)
		memory_free_locked(p);
	log_setup("cuIpcCloseMemHandle", NULL, ctx, from);
	return leave(CUDA_SUCCESS);
}
