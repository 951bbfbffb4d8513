/* SPDX-License-Identifier: Apache-2.0 */
/* Stream memory operations: writing a value, waiting for one. */
#include "sim.h"

static CUresult value_op(CUstream h, CUdeviceptr p, uint64_t v, uint32_t size, unsigned flags, bool wait, const char *name,
			 bool per_thread)
{
	struct context *ctx;
	struct stream *s;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	r = stream_get_locked(ctx, h, per_thread, &s);
	if (r)
		return leave(r);
	if (p % size || !memory_at_locked(p, size) || flags > (wait ? 0x40000003u : 1u))
		return leave(CUDA_ERROR_INVALID_VALUE);
	return leave(submit_locked(&(struct submit){
		.name = name, .class = SIM_ORDER, .stream = s,
		.step = { .kind = wait ? STEP_WAIT_VALUE : STEP_WRITE,
			  .value = { .address = p, .value = v, .size = size, .flags = flags } } }, NULL));
}

#define VALUE_OP(NAME, TYPE, WAIT)                                                                                     \
	EXPORT CUresult NAME(CUstream h, CUdeviceptr p, TYPE v, unsigned int flags)                                    \
	{                                                                                                              \
		return value_op(h, p, v, sizeof(TYPE), flags, WAIT, #NAME, false);                                     \
	}                                                                                                              \
	EXPORT CUresult NAME##_ptsz(CUstream h, CUdeviceptr p, TYPE v, unsigned int flags)                             \
	{                                                                                                              \
		return value_op(h, p, v, sizeof(TYPE), flags, WAIT, #NAME, true);                                      \
	}

VALUE_OP(cuStreamWriteValue32_v2, cuuint32_t, false)
VALUE_OP(cuStreamWriteValue64_v2, cuuint64_t, false)
VALUE_OP(cuStreamWaitValue32_v2, cuuint32_t, true)
VALUE_OP(cuStreamWaitValue64_v2, cuuint64_t, true)
VALUE_OP(cuStreamWriteValue32, cuuint32_t, false)
VALUE_OP(cuStreamWriteValue64, cuuint64_t, false)
VALUE_OP(cuStreamWaitValue32, cuuint32_t, true)
VALUE_OP(cuStreamWaitValue64, cuuint64_t, true)

static CUresult batch(CUstream h, unsigned n, const CUstreamBatchMemOpParams *p, unsigned flags, bool per_thread)
{
	CUresult r = CUDA_SUCCESS;

	if ((n && !p) || n > 256 || flags)
		return CUDA_ERROR_INVALID_VALUE;
	for (unsigned i = 0; i < n && !r; i++) {
		bool wide = p[i].operation == CU_STREAM_MEM_OP_WAIT_VALUE_64 || p[i].operation == CU_STREAM_MEM_OP_WRITE_VALUE_64;

		switch (p[i].operation) {
		case CU_STREAM_MEM_OP_WAIT_VALUE_32:
		case CU_STREAM_MEM_OP_WAIT_VALUE_64:
			r = value_op(h, p[i].waitValue.address, wide ? p[i].waitValue.value64 : p[i].waitValue.value, wide ? 8 : 4,
				     p[i].waitValue.flags, true, "cuStreamBatchMemOp:wait", per_thread);
			break;
		case CU_STREAM_MEM_OP_WRITE_VALUE_32:
		case CU_STREAM_MEM_OP_WRITE_VALUE_64:
			r = value_op(h, p[i].writeValue.address, wide ? p[i].writeValue.value64 : p[i].writeValue.value, wide ? 8 : 4,
				     p[i].writeValue.flags, false, "cuStreamBatchMemOp:write", per_thread);
			break;
		default:
			r = CUDA_ERROR_NOT_SUPPORTED;
		}
	}
	return r;
}

EXPORT CUresult cuStreamBatchMemOp(CUstream h, unsigned int n, CUstreamBatchMemOpParams *p, unsigned int flags)
{
	return batch(h, n, p, flags, false);
}

EXPORT CUresult cuStreamBatchMemOp_ptsz(CUstream h, unsigned int n, CUstreamBatchMemOpParams *p, unsigned int flags)
{
	return batch(h, n, p, flags, true);
}

EXPORT CUresult cuStreamBatchMemOp_v2(CUstream h, unsigned int n, CUstreamBatchMemOpParams *p, unsigned int flags)
{
	return batch(h, n, p, flags, false);
}

EXPORT CUresult cuStreamBatchMemOp_v2_ptsz(CUstream h, unsigned int n, CUstreamBatchMemOpParams *p, unsigned int flags)
{
	return batch(h, n, p, flags, true);
}
