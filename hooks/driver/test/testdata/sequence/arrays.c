/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays, copies of lines, rectangles and boxes, and batches of copies. */
#include "sequence.h"

#define ARRAYS 4
#define W      16              /* elements of four bytes: 64 bytes a row */
#define H      8
#define D      2
#define ROW    (W * 4)

struct arrays {
	CUarray array[ARRAYS];     /* two of one dimension, one of two, one of three */
	CUmipmappedArray levels;
};

static void create(struct thread *t, struct arrays *a, int i)
{
	CUDA_ARRAY3D_DESCRIPTOR d = { .Width = W, .Height = i > 1 ? H : 0, .Depth = i > 2 ? D : 0, .Format = CU_AD_FORMAT_UNSIGNED_INT32,
				      .NumChannels = 1 };
	CUDA_ARRAY_DESCRIPTOR flat = { .Width = W, .Height = d.Height, .Format = d.Format, .NumChannels = 1 };
	CUarray none;
	CUresult r;

	if (a->array[i] || chance(t, 20)) {
		d.NumChannels = 3;
		note(t, cuArray3DCreate(&none, &d), "cuArray3DCreate of three channels");
		d.NumChannels = 4;
		d.Width = d.Height = d.Depth = 16384;
		note(t, cuArray3DCreate(&none, &d), "cuArray3DCreate of too much");
		return;
	}
	if (i < 3 && chance(t, 50))
		r = note(t, cuArrayCreate(&a->array[i], &flat), "cuArrayCreate %d", i);
	else
		r = note(t, cuArray3DCreate(&a->array[i], &d), "cuArray3DCreate %d", i);
	if (r != CUDA_SUCCESS) {
		a->array[i] = NULL;
		return;
	}
	/* What is in a new array nobody knows. */
	for (unsigned n = 0; n < W * H * D; n++)
		t->host[n] = n;
	CUDA_MEMCPY3D up = { .srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = t->host, .srcPitch = ROW, .srcHeight = H,
			     .dstMemoryType = CU_MEMORYTYPE_ARRAY, .dstArray = a->array[i], .WidthInBytes = ROW, .Height = i > 1 ? H : 1,
			     .Depth = i > 2 ? D : 1 };
	note(t, t->cuMemcpy3D_v2_(&up), "first cuMemcpy3D to %d", i);
}

static void destroy(struct thread *t, struct arrays *a, int i)
{
	if (a->array[i] && note(t, cuArrayDestroy(a->array[i]), "cuArrayDestroy %d", i) == CUDA_SUCCESS)
		a->array[i] = NULL;
}

static void describe(struct thread *t, struct arrays *a, int i)
{
	CUDA_ARRAY3D_DESCRIPTOR d = { 0 };
	CUresult r;

	if (!a->array[i])
		return;
	r = cuArray3DGetDescriptor(&d, a->array[i]);
	note(t, r, "cuArray3DGetDescriptor %d: %zu %zu %zu %d", i, d.Width, d.Height, d.Depth, (int)d.Format);
}

/* Offsets and sizes that do not fit are errors. */
static void lines(struct thread *t, struct arrays *a, int i)
{
	size_t at = pick(t, W) * 4, n = (1 + pick(t, W)) * 4 / (1 + pick(t, 4)) / 4 * 4;
	struct buffer *b = some_buffer(t);

	if (!a->array[i])
		return;
	switch (pick(t, 5)) {
	case 0:
		note(t, t->cuMemcpyHtoA_v2_(a->array[i], at, t->host, n), "cuMemcpyHtoA %d at %zu, %zu", i, at, n);
		break;
	case 1:
		memset(t->host, 0, CHUNK);
		note(t, t->cuMemcpyAtoH_v2_(t->host, a->array[i], at, n), "cuMemcpyAtoH %d at %zu, %zu", i, at, n);
		show(t, W * 2);
		break;
	case 2:
		if (b && settle(t, b))
			note(t, t->cuMemcpyAtoD_v2_(b->at, a->array[i], at, n), "cuMemcpyAtoD %d at %zu, %zu", i, at, n);
		break;
	case 3:
		if (b && settle(t, b))
			note(t, t->cuMemcpyDtoA_v2_(a->array[i], at, b->at, n), "cuMemcpyDtoA %d at %zu, %zu", i, at, n);
		break;
	case 4:
		memset(t->host, 0, CHUNK);
		note(t, t->cuMemcpyAtoHAsync_v2_(t->host, a->array[i], at, n, t->stream[0]), "cuMemcpyAtoHAsync %d at %zu, %zu", i, at, n);
		settle_stream(t, 0);
		show(t, W * 2);
		break;
	}
	note(t, cuCtxSynchronize(), "cuCtxSynchronize");
}

static void between(struct thread *t, struct arrays *a)
{
	int i = (int)pick(t, chance(t, 80) ? 2 : ARRAYS), j = (int)pick(t, chance(t, 80) ? 2 : ARRAYS);
	size_t at = pick(t, W) * 4, n = (1 + pick(t, W / 2)) * 4;

	if (!a->array[i] || !a->array[j] || i == j)
		return;
	note(t, t->cuMemcpyAtoA_v2_(a->array[i], 0, a->array[j], at, n), "cuMemcpyAtoA %d to %d at %zu, %zu", j, i, at, n);
	note(t, cuCtxSynchronize(), "cuCtxSynchronize");
}

/* Of memory of the host, through a buffer, and back. */
static void rectangle(struct thread *t)
{
	struct buffer *b = some_buffer(t);
	CUDA_MEMCPY2D p = { .srcMemoryType = CU_MEMORYTYPE_HOST, .srcHost = t->host, .srcPitch = ROW, .srcXInBytes = pick(t, 16), .srcY = pick(t, 4),
			    .dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstPitch = 128, .dstXInBytes = pick(t, 32), .dstY = pick(t, 4),
			    .WidthInBytes = 1 + pick(t, 40), .Height = 1 + pick(t, 8) };

	if (!b || !settle(t, b))
		return;
	p.dstDevice = b->at;
	if (chance(t, 10))
		p.srcPitch = 3;
	for (unsigned i = 0; i < WORDS; i++)
		t->host[i] = i * 77;
	switch (pick(t, 3)) {
	case 0:
		note(t, t->cuMemcpy2D_v2_(&p), "cuMemcpy2D to %d", which(t, b));
		break;
	case 1:
		note(t, t->cuMemcpy2DUnaligned_v2_(&p), "cuMemcpy2DUnaligned to %d", which(t, b));
		break;
	case 2:
		note(t, t->cuMemcpy2DAsync_v2_(&p, t->stream[b->home]), "cuMemcpy2DAsync to %d", which(t, b));
		break;
	}
	note(t, t->cuMemsetD2D8Async_(b->at + 64, 128, 5, 1 + pick(t, 64), 1 + pick(t, 8), t->stream[b->home]), "cuMemsetD2D8Async %d",
	     which(t, b));
	note(t, cuCtxSynchronize(), "cuCtxSynchronize");
}

static void box(struct thread *t, struct arrays *a, int i)
{
	CUDA_MEMCPY3D p = { .srcMemoryType = CU_MEMORYTYPE_ARRAY, .srcArray = a->array[i], .srcXInBytes = pick(t, 8) * 4, .srcY = pick(t, 3),
			    .srcZ = pick(t, 100) / 70, .dstMemoryType = CU_MEMORYTYPE_HOST, .dstHost = t->host, .dstPitch = ROW, .dstHeight = H,
			    .WidthInBytes = (1 + pick(t, 10)) * 4, .Height = 1 + pick(t, 6), .Depth = 1 + pick(t, 100) / 70 };

	if (!a->array[i])
		return;
	memset(t->host, 0, CHUNK);
	if (chance(t, 50)) {
		note(t, t->cuMemcpy3D_v2_(&p), "cuMemcpy3D of %d", i);
	} else {
		note(t, t->cuMemcpy3DAsync_v2_(&p, t->stream[0]), "cuMemcpy3DAsync of %d", i);
		settle_stream(t, 0);
	}
	show(t, WORDS);
}

static void mipmap(struct thread *t, struct arrays *a)
{
	CUDA_ARRAY3D_DESCRIPTOR d = { .Width = W, .Height = H, .Format = CU_AD_FORMAT_UNSIGNED_INT16, .NumChannels = 2 }, got = { 0 };
	unsigned level = pick(t, 7);
	CUarray part = NULL;
	CUresult r;

	if (!a->levels) {
		if (note(t, cuMipmappedArrayCreate(&a->levels, &d, 4), "cuMipmappedArrayCreate") != CUDA_SUCCESS)
			a->levels = NULL;
		return;
	}
	r = note(t, cuMipmappedArrayGetLevel(&part, a->levels, level), "cuMipmappedArrayGetLevel %u", level);
	if (r == CUDA_SUCCESS) {
		r = cuArray3DGetDescriptor(&got, part);
		note(t, r, "level %u is %zu %zu", level, got.Width, got.Height);
	}
	if (chance(t, 30) && note(t, cuMipmappedArrayDestroy(a->levels), "cuMipmappedArrayDestroy") == CUDA_SUCCESS)
		a->levels = NULL;
}

static struct arrays *of(struct thread *t)
{
	if (!t->arrays)
		t->arrays = state_of(sizeof(*t->arrays));
	return t->arrays;
}

void arrays(struct thread *t)
{
	int i = (int)pick(t, ARRAYS);
	struct arrays *a = of(t);

	if (t->capturing >= 0)
		return;
	switch (pick(t, 9)) {
	case 0:
	case 1:
		create(t, a, i);
		break;
	case 2:
		destroy(t, a, i);
		break;
	case 3:
		describe(t, a, i);
		break;
	case 4:
		lines(t, a, chance(t, 80) ? (int)pick(t, 2) : i);
		break;
	case 5:
		between(t, a);
		break;
	case 6:
		rectangle(t);
		break;
	case 7:
		box(t, a, chance(t, 80) ? 2 + (int)pick(t, 2) : i);
		break;
	case 8:
		mipmap(t, a);
		break;
	}
}

/* Two parts of a buffer from memory of the host; a batch that is wrong anywhere copies nothing. */
static void batch(struct thread *t, struct buffer *b)
{
	CUmemcpyAttributes attribute = { .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL };
	size_t sizes[2] = { 256, 512 }, at = 0;
	CUdeviceptr to[2] = { b->at + 64, b->at + 1024 };
	CUdeviceptr from[2] = { (CUdeviceptr)(uintptr_t)t->host, (CUdeviceptr)(uintptr_t)(t->host + 256) };
	unsigned value = pick(t, 1000);

	for (unsigned i = 0; i < WORDS; i++)
		t->host[i] = value + i;
	switch (pick(t, 4)) {
	case 0:
		attribute.srcAccessOrder = (CUmemcpySrcAccessOrder)77;
		break;
	case 1:
		sizes[1] = 0;
		break;
	}
	if (chance(t, 70))
		note(t, t->cuMemcpyBatchAsync_v2_(to, from, sizes, 2, &attribute, &at, 1, t->stream[b->home]), "cuMemcpyBatchAsync to %d",
		     which(t, b));
	else
		note(t, t->cuMemcpyWithAttributesAsync_(to[0], from[0], sizes[0], &attribute, t->stream[b->home]),
		     "cuMemcpyWithAttributesAsync to %d", which(t, b));
}

static void box_batch(struct thread *t, struct arrays *a, int i, struct buffer *b)
{
	CUDA_MEMCPY3D_BATCH_OP op = { .src = { .type = CU_MEMCPY_OPERAND_TYPE_ARRAY, .op.array = { .array = a->array[i], .offset = { pick(t, 4), 0, 0 } } },
				      .dst = { .type = CU_MEMCPY_OPERAND_TYPE_POINTER, .op.ptr = { .ptr = b->at } },
				      .extent = { 1 + pick(t, W), 1 + pick(t, 2), 1 },
				      .srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM };

	if (a->array[i])
		note(t, t->cuMemcpy3DBatchAsync_v2_(1, &op, 0, t->stream[b->home]), "cuMemcpy3DBatchAsync of %d to %d", i, which(t, b));
}

void batches(struct thread *t)
{
	struct buffer *b = some_buffer(t);

	if (!b || t->capturing >= 0)
		return;
	switch (pick(t, 3)) {
	case 0:
		batch(t, b);
		break;
	case 1:
		box_batch(t, of(t), (int)pick(t, ARRAYS), b);
		break;
	case 2:
		note(t, t->cuMemcpyPeerAsync_(b->at, t->context, b->at + 1024, t->context, 512, t->stream[b->home]), "cuMemcpyPeerAsync in %d",
		     which(t, b));
		break;
	}
	/* Here memory of the host is read at the latest. */
	settle(t, b);
}
