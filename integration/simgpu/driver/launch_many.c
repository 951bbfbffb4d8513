/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A cooperative launch on several devices. The kernels here do not meet, so the
 * launch is one after another; what its streams had before, and what they get
 * behind, waits for all of them unless the flags say otherwise.
 */
#include "sim.h"

#define NO_PRE CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_PRE_LAUNCH_SYNC
#define NO_POST CUDA_COOPERATIVE_LAUNCH_MULTI_DEVICE_NO_POST_LAUNCH_SYNC
#define NAME "cuLaunchCooperativeKernelMultiDevice"

static bool same_shape(const CUDA_LAUNCH_PARAMS *a, const CUDA_LAUNCH_PARAMS *b)
{
	return a->gridDimX == b->gridDimX && a->gridDimY == b->gridDimY && a->gridDimZ == b->gridDimZ && a->blockDimX == b->blockDimX &&
	       a->blockDimY == b->blockDimY && a->blockDimZ == b->blockDimZ && a->sharedMemBytes == b->sharedMemBytes;
}

/* For each a stream, of a device of its own, and none of them a default one. */
static CUresult check_locked(const CUDA_LAUNCH_PARAMS *list, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		struct stream *s = handle_get_locked(list[i].hStream, KIND_STREAM);
		CUresult r;

		if (!s || s->legacy || s->per_thread)
			return CUDA_ERROR_INVALID_HANDLE;
		r = s->ctx->error ? s->ctx->error : capture_forbid_locked(s);
		if (r)
			return r;
		if (!same_shape(&list[0], &list[i]))
			return CUDA_ERROR_INVALID_VALUE;
		for (unsigned k = 0; k < i; k++)
			if (((struct stream *)list[k].hStream)->ctx->gpu == s->ctx->gpu)
				return CUDA_ERROR_INVALID_DEVICE;
	}
	return CUDA_SUCCESS;
}

/* Every stream waits for what all have now. */
static CUresult meet_locked(struct stream *const *streams, unsigned n)
{
	uint64_t at[SIM_MAX_GPUS];
	CUresult r = CUDA_SUCCESS;

	for (unsigned i = 0; i < n; i++)
		at[i] = streams[i]->submitted;
	for (unsigned i = 0; i < n && !r; i++)
		for (unsigned k = 0; k < n && !r; k++) {
			const struct event e = { .at = { streams[k], at[k] } };

			if (k != i)
				r = submit_locked(&(struct submit){ .name = NAME, .class = SIM_ORDER, .stream = streams[i], .event = &e,
								    .step = { .kind = STEP_NOTHING } }, NULL);
		}
	return r;
}

static CUresult launch_locked(const CUDA_LAUNCH_PARAMS *l, struct stream *s)
{
	const char *kernel;
	struct step st;
	CUresult r = launch_step_locked(s->ctx, &(CUDA_KERNEL_NODE_PARAMS){
		.func = l->function, .gridDimX = l->gridDimX, .gridDimY = l->gridDimY, .gridDimZ = l->gridDimZ, .blockDimX = l->blockDimX,
		.blockDimY = l->blockDimY, .blockDimZ = l->blockDimZ, .sharedMemBytes = l->sharedMemBytes,
		.kernelParams = l->kernelParams }, &st, &kernel);

	if (r)
		return r;
	return submit_locked(&(struct submit){ .name = NAME, .detail = kernel, .class = SIM_WORK, .stream = s, .step = st }, NULL);
}

EXPORT CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned int n, unsigned int flags)
{
	struct stream *streams[SIM_MAX_GPUS];
	CUresult r = enter();

	if (r)
		return r;
	if (!list || !n || n > (unsigned)sim.n_devices || flags & ~(unsigned)(NO_PRE | NO_POST))
		return CUDA_ERROR_INVALID_VALUE;
	lock();
	r = check_locked(list, n);
	if (r)
		return leave(r);
	for (unsigned i = 0; i < n; i++)
		streams[i] = stream_ref((struct stream *)list[i].hStream);
	if (!(flags & NO_PRE))
		r = meet_locked(streams, n);
	for (unsigned i = 0; i < n && !r; i++)
		r = launch_locked(&list[i], streams[i]);
	if (!r && !(flags & NO_POST))
		r = meet_locked(streams, n);
	for (unsigned i = 0; i < n; i++)
		stream_put_locked(streams[i]);
	return leave(r);
}
