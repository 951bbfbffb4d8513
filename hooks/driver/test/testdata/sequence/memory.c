/* SPDX-License-Identifier: Apache-2.0 */
/* Buffers: allocated, set, filled, copied, freed. Each is used on one stream. */
#include "sequence.h"

/* A buffer in use, or NULL. */
struct buffer *some_buffer(struct thread *t)
{
	struct buffer *b = &t->buffer[pick(t, BUFFERS)];

	return b->home >= 0 ? b : NULL;
}

int which(struct thread *t, struct buffer *b)
{
	return (int)(b - t->buffer);
}

bool settle(struct thread *t, struct buffer *b)
{
	return note(t, t->cuStreamSynchronize_(t->stream[b->home]), "settle stream %d", b->home) == CUDA_SUCCESS;
}

void mark_captured(struct thread *t, struct buffer *b)
{
	if (t->capturing >= 0)
		b->in_graph = true;
}

void allocate_in_capture(struct thread *t)
{
	CUdeviceptr at = 0;

	if (note(t, cuMemAlloc(&at, CHUNK), "cuMemAlloc in a capture") == CUDA_SUCCESS)
		note(t, cuMemFree(at), "cuMemFree in a capture");
}

void allocate(struct thread *t)
{
	struct buffer *b = &t->buffer[pick(t, BUFFERS)];
	int home = some_stream(t);
	CUdeviceptr at = 0;
	CUresult r;
	bool async;

	if (b->home >= 0)
		return;
	if (t->capturing >= 0) {
		allocate_in_capture(t);
		return;
	}
	async = chance(t, 30);
	if (async)
		r = note(t, t->cuMemAllocAsync_(&at, CHUNK, t->stream[home]), "cuMemAllocAsync %d on %d", which(t, b), home);
	else
		r = note(t, cuMemAlloc(&at, CHUNK), "cuMemAlloc %d", which(t, b));
	if (r != CUDA_SUCCESS)
		return;
	*b = (struct buffer){ .at = at, .home = home, .async = async };
	note(t, t->cuMemsetD32Async_(at, 7, WORDS, t->stream[home]), "first set of %d", which(t, b));
}

void release(struct thread *t)
{
	struct buffer *b = some_buffer(t);
	CUresult r;

	if (!b || b->in_graph || t->capturing >= 0)
		return;
	if (b->async) {
		r = note(t, t->cuMemFreeAsync_(b->at, t->stream[b->home]), "cuMemFreeAsync %d", which(t, b));
	} else {
		if (!settle(t, b))
			return;
		r = note(t, cuMemFree(b->at), "cuMemFree %d", which(t, b));
	}
	if (r == CUDA_SUCCESS)
		b->home = -1;
}

void impossible(struct thread *t)
{
	CUdeviceptr at = 1;
	size_t pitch = 1;

	switch (pick(t, 4)) {
	case 0:
		note(t, cuMemAlloc(&at, (size_t)1 << 50), "cuMemAlloc of a PiB");
		break;
	case 1:
		note(t, cuMemAlloc(&at, 0), "cuMemAlloc of nothing");
		break;
	case 2:
		note(t, cuMemAllocPitch(&at, &pitch, (size_t)1 << 40, 1 << 20, 4), "cuMemAllocPitch of too much");
		break;
	case 3:
		note(t, cuMemFree((CUdeviceptr)0x1234), "cuMemFree of a wild pointer");
		break;
	}
}

void set(struct thread *t)
{
	struct buffer *b = some_buffer(t);
	unsigned value = pick(t, 1000), words = 1 + pick(t, WORDS);

	if (!b)
		return;
	switch (pick(t, 3)) {
	case 0:
		if (!settle(t, b))
			return;
		note(t, t->cuMemsetD32_v2_(b->at, value, words), "cuMemsetD32 %d", which(t, b));
		note(t, cuCtxSynchronize(), "cuCtxSynchronize");
		return;
	case 1:
		note(t, t->cuMemsetD32Async_(b->at, value, words, t->stream[b->home]), "cuMemsetD32Async %d", which(t, b));
		break;
	case 2:
		note(t, t->cuMemsetD8Async_(b->at, (unsigned char)value, words, t->stream[b->home]), "cuMemsetD8Async %d", which(t, b));
		break;
	}
	mark_captured(t, b);
}

void launch(struct thread *t)
{
	struct buffer *b = some_buffer(t);
	unsigned value = pick(t, 1000), n = WORDS, us = pick(t, 400);
	void *fill[] = { b ? &b->at : NULL, &value, &n }, *spin[] = { &us };
	int s = some_stream(t);

	switch (pick(t, 5)) {
	case 0:
		note(t, t->cuLaunchKernel_(NULL, 1, 1, 1, 1, 1, 1, 0, t->stream[s], NULL, NULL), "launch of nothing on %d", s);
		return;
	case 1:
		note(t, t->cuLaunchKernel_(t->spin, 0, 1, 1, 1, 1, 1, 0, t->stream[s], spin, NULL), "launch of no block on %d", s);
		return;
	case 2:
		note(t, t->cuLaunchKernel_(t->spin, 1, 1, 1, 1, 1, 1, 0, t->stream[s], spin, NULL), "spin on %d", s);
		return;
	}
	if (!b)
		return;
	note(t, t->cuLaunchKernel_(t->fill, 4, 1, 1, 128, 1, 1, 0, t->stream[b->home], fill, NULL), "fill %d", which(t, b));
	mark_captured(t, b);
}

void copy(struct thread *t)
{
	struct buffer *a = some_buffer(t), *b = some_buffer(t);
	unsigned from = pick(t, 1000);

	if (!b)
		return;
	switch (pick(t, 5)) {
	case 0:
		if (!settle(t, b))
			return;
		for (unsigned i = 0; i < WORDS; i++)
			t->host[i] = from + i;
		note(t, t->cuMemcpyHtoD_v2_(b->at, t->host, CHUNK), "cuMemcpyHtoD %d", which(t, b));
		note(t, cuCtxSynchronize(), "cuCtxSynchronize");
		break;
	case 1:
		if (!settle(t, b))
			return;
		memset(t->host, 0, CHUNK);
		note(t, t->cuMemcpyDtoH_v2_(t->host, b->at, CHUNK), "cuMemcpyDtoH %d", which(t, b));
		show(t, WORDS);
		break;
	case 2:
		if (t->capturing >= 0)
			return; /* the host's memory would be read whenever the graph runs */
		memset(t->host, 0, CHUNK);
		note(t, t->cuMemcpyDtoHAsync_v2_(t->host, b->at, CHUNK, t->stream[b->home]), "cuMemcpyDtoHAsync %d", which(t, b));
		settle(t, b);
		show(t, WORDS);
		break;
	case 3:
		if (!a || a == b || a->home != b->home)
			return;
		note(t, t->cuMemcpyDtoDAsync_v2_(b->at, a->at, CHUNK, t->stream[b->home]), "cuMemcpyDtoDAsync %d to %d", which(t, a), which(t, b));
		mark_captured(t, a);
		mark_captured(t, b);
		break;
	case 4:
		note(t, t->cuMemcpyDtoDAsync_v2_(b->at, b->at, 0, t->stream[b->home]), "copy of nothing in %d", which(t, b));
		break;
	}
}
