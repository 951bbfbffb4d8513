/* SPDX-License-Identifier: Apache-2.0 */
/* Streams, events, host functions, values that streams write and wait for. */
#include "sequence.h"

int some_stream(struct thread *t)
{
	int i = (int)pick(t, STREAMS);

	return t->alive[i] ? i : (int)pick(t, 2);
}

int own_stream(struct thread *t)
{
	int i = 2 + (int)pick(t, STREAMS - 2);

	return t->alive[i] ? i : -1;
}

bool settle_stream(struct thread *t, int s)
{
	return note(t, t->cuStreamSynchronize_(t->stream[s]), "settle stream %d", s) == CUDA_SUCCESS;
}

static CUresult create(struct thread *t, int i)
{
	int priority = (int)pick(t, 10) - 7;
	unsigned flags = pick(t, 20) ? pick(t, 2) : 77;

	if (chance(t, 60))
		return note(t, cuStreamCreate(&t->stream[i], pick(t, 2)), "cuStreamCreate %d", i);
	return note(t, cuStreamCreateWithPriority(&t->stream[i], flags, priority), "cuStreamCreateWithPriority %d, %u, %d", i, flags, priority);
}

static void ask(struct thread *t, int s)
{
	CUstreamCaptureStatus status = 77;
	unsigned flags = 77;
	int priority = 77, least = 77, greatest = 77;
	CUresult r;

	switch (pick(t, 4)) {
	case 0:
		r = t->cuStreamGetPriority_(t->stream[s], &priority);
		note(t, r, "cuStreamGetPriority %d: %d", s, priority);
		break;
	case 1:
		r = t->cuStreamGetFlags_(t->stream[s], &flags);
		note(t, r, "cuStreamGetFlags %d: %u", s, flags);
		break;
	case 2:
		r = t->cuStreamIsCapturing_(t->stream[s], &status);
		note(t, r, "cuStreamIsCapturing %d: %d", s, (int)status);
		break;
	case 3:
		r = cuCtxGetStreamPriorityRange(&least, &greatest);
		note(t, r, "cuCtxGetStreamPriorityRange: %d to %d", least, greatest);
		break;
	}
}

void streams(struct thread *t)
{
	int i = 2 + (int)pick(t, STREAMS - 2), s = some_stream(t);

	switch (pick(t, 5)) {
	case 0:
		if (!t->alive[i])
			t->alive[i] = create(t, i) == CUDA_SUCCESS;
		break;
	case 1:
		if (!t->alive[i] || t->capturing >= 0)
			return;
		for (int b = 0; b < BUFFERS; b++)
			if (t->buffer[b].home == i)
				return;
		for (int g = 0; g < EXECS; g++)
			if (t->exec[g] && t->exec_home[g] == i)
				return;
		note(t, cuStreamDestroy(t->stream[i]), "cuStreamDestroy %d", i);
		t->alive[i] = false;
		break;
	case 2:
		note(t, t->cuStreamSynchronize_(t->stream[s]), "cuStreamSynchronize %d", s);
		break;
	case 3:
		note(t, t->cuStreamQuery_(t->stream[s]), "cuStreamQuery %d", s);
		break;
	case 4:
		ask(t, s);
		break;
	}
}

void events(struct thread *t)
{
	int e = (int)pick(t, EVENTS), s = some_stream(t), other = some_stream(t);
	unsigned flags;
	float ms;

	if (!t->event[e]) {
		note(t, cuEventCreate(&t->event[e], pick(t, 2) ? CU_EVENT_DISABLE_TIMING : CU_EVENT_DEFAULT), "cuEventCreate %d", e);
		return;
	}
	switch (pick(t, 8)) {
	case 6:
		flags = pick(t, 3);
		note(t, t->cuEventRecordWithFlags_(t->event[e], t->stream[s], flags), "cuEventRecordWithFlags %d on %d, %u", e, s, flags);
		break;
	case 7:
		flags = pick(t, 3);
		note(t, t->cuStreamWaitEvent_(t->stream[s], t->event[e], flags), "cuStreamWaitEvent %d on %d, %u", e, s, flags);
		break;
	case 0:
	case 1:
		note(t, t->cuEventRecord_(t->event[e], t->stream[s]), "cuEventRecord %d on %d", e, s);
		break;
	case 2:
		note(t, t->cuStreamWaitEvent_(t->stream[other], t->event[e], 0), "cuStreamWaitEvent %d on %d", e, other);
		break;
	case 3:
		note(t, cuEventSynchronize(t->event[e]), "cuEventSynchronize %d", e);
		break;
	case 4:
		note(t, cuEventQuery(t->event[e]), "cuEventQuery %d", e);
		break;
	case 5:
		if (chance(t, 50)) {
			note(t, cuEventElapsedTime(&ms, t->event[e], t->event[e]), "cuEventElapsedTime %d", e);
			return;
		}
		note(t, cuEventDestroy(t->event[e]), "cuEventDestroy %d", e);
		t->event[e] = NULL;
		break;
	}
}

static void called(void *arg)
{
	struct thread *t = arg;

	t->called++;
}

static void called_back(CUstream s, CUresult status, void *arg)
{
	struct thread *t = arg;

	(void)s;
	t->called += status == CUDA_SUCCESS ? 100 : 10000;
}

void host_functions(struct thread *t)
{
	int s = some_stream(t);

	if (t->capturing >= 0)
		return;
	if (chance(t, 70))
		note(t, t->cuLaunchHostFunc_(t->stream[s], called, t), "cuLaunchHostFunc on %d", s);
	else
		note(t, t->cuStreamAddCallback_(t->stream[s], called_back, t, 0), "cuStreamAddCallback on %d", s);
	settle_stream(t, s);
	fprintf(t->out, "  called %u\n", t->called);
}

/* A word that only grows; a wait for what is not yet submitted would wait for ever. */
struct values {
	CUdeviceptr word;
	unsigned last;
};

static void values_in_batch(struct thread *t, struct values *v, int s)
{
	CUstreamBatchMemOpParams op[2] = {
		{ .writeValue = { .operation = CU_STREAM_MEM_OP_WRITE_VALUE_32, .address = v->word, .value = ++v->last } },
		{ .waitValue = { .operation = CU_STREAM_MEM_OP_WAIT_VALUE_32, .address = v->word, .value = v->last,
				 .flags = CU_STREAM_WAIT_VALUE_GEQ } },
	};

	note(t, t->cuStreamBatchMemOp_v2_(t->stream[s], 2, op, 0), "cuStreamBatchMemOp on %d", s);
}

/* Written on one stream, in the order of the values, and waited for on any. */
void values(struct thread *t)
{
	struct values *v = t->values;
	int s = some_stream(t);

	if (t->capturing >= 0)
		return;
	if (!v) {
		v = t->values = state_of(sizeof(*v));
		if (note(t, cuMemAlloc(&v->word, 8), "cuMemAlloc of a value") != CUDA_SUCCESS)
			v->word = 0;
		note(t, t->cuMemsetD32Async_(v->word, 0, 2, t->stream[0]), "first value");
		settle_stream(t, 0);
	}
	switch (pick(t, 6)) {
	case 0:
	case 1:
		note(t, t->cuStreamWriteValue32_v2_(t->stream[0], v->word, ++v->last, 0), "cuStreamWriteValue32");
		break;
	case 2:
		note(t, t->cuStreamWaitValue32_v2_(t->stream[s], v->word, v->last, CU_STREAM_WAIT_VALUE_GEQ), "cuStreamWaitValue32 on %d", s);
		break;
	case 3:
		values_in_batch(t, v, 0);
		break;
	case 4:
		note(t, t->cuStreamWriteValue32_v2_(t->stream[s], v->word + 1, 5, 0), "cuStreamWriteValue32 at half a word");
		break;
	case 5:
		t->host[0] = 0;
		note(t, t->cuMemcpyDtoHAsync_v2_(t->host, v->word, 4, t->stream[0]), "reading the value");
		if (settle_stream(t, 0))
			fprintf(t->out, "  value %u of %u\n", t->host[0], v->last);
		break;
	}
}
