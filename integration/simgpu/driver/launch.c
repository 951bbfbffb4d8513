/* SPDX-License-Identifier: Apache-2.0 */
/* Kernel launches. */
#include <stdlib.h>
#include <string.h>

#include "module.h"

static bool shape_ok(const CUDA_KERNEL_NODE_PARAMS *p)
{
	uint64_t block = (uint64_t)p->blockDimX * p->blockDimY * p->blockDimZ;

	return p->gridDimX && p->gridDimY && p->gridDimZ && block && block <= 1024 && p->blockDimZ <= 64 &&
	       p->gridDimX <= 0x7fffffff && p->gridDimY <= 65535 && p->gridDimZ <= 65535 && p->sharedMemBytes <= 232448;
}

/* The parameters as one buffer: CU_LAUNCH_PARAM_BUFFER_POINTER and _SIZE. */
static bool from_buffer(void **extra, unsigned char *to, size_t need)
{
	const void *buffer = NULL;
	size_t size = 0;

	for (; *extra != LAUNCH_PARAM_END; extra += 2) {
		if (*extra == LAUNCH_PARAM_BUFFER_POINTER)
			buffer = extra[1];
		else if (*extra == LAUNCH_PARAM_BUFFER_SIZE)
			size = *(size_t *)extra[1];
		else
			return false;
	}
	if (size < need || (need && !buffer))
		return false;
	if (need)
		memcpy(to, buffer, need);
	return true;
}

static CUresult find(struct context *ctx, const void *h, struct function **out)
{
	*out = handle_get_locked(h, KIND_FUNCTION);
	if (!*out)
		return kernel_function_locked(ctx, h, out);
	return (*out)->module->ctx == ctx ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult launch_step_locked(struct context *ctx, const CUDA_KERNEL_NODE_PARAMS *p, struct step *out, const char **name)
{
	struct function *f;
	CUresult r = find(ctx, p->func ? (void *)p->func : (void *)p->kern, &f);

	if (r)
		return r;
	if (!shape_ok(p))
		return CUDA_ERROR_INVALID_VALUE;
	const struct entry *e = f->entry;
	size_t layout = e->n_params * sizeof(struct param);
	char *block = calloc(1, layout + e->bytes + 1);
	if (!block)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*out = (struct step){ .kind = STEP_KERNEL, .launch = {
		.body = f->body, .layout = (struct param *)block, .params = (unsigned char *)block + layout,
		.n_params = e->n_params, .bytes = e->bytes,
		.grid = { p->gridDimX, p->gridDimY, p->gridDimZ },
		.block = { p->blockDimX, p->blockDimY, p->blockDimZ },
		.shared = p->sharedMemBytes, .function = f } };
	bool ok = true;
	if (p->extra)
		ok = !p->kernelParams && from_buffer(p->extra, out->launch.params, e->bytes);
	else if (e->n_params)
		ok = p->kernelParams != NULL;
	for (uint32_t i = 0; i < e->n_params; i++) {
		out->launch.layout[i] = e->params[i];
		if (ok && !p->extra)
			memcpy(out->launch.params + e->params[i].offset, p->kernelParams[i], e->params[i].size);
	}
	if (!ok) {
		step_release_locked(out);
		return CUDA_ERROR_INVALID_VALUE;
	}
	*name = e->name;
	return CUDA_SUCCESS;
}

CUresult launch_kernel(const CUDA_KERNEL_NODE_PARAMS *p, CUstream h, const char *call, bool per_thread)
{
	const char *kernel;
	struct context *ctx;
	struct stream *s;
	struct step st;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	r = stream_get_locked(ctx, h, per_thread, &s);
	if (r)
		return leave(r);
	/* A function lives in the context of its stream. */
	r = launch_step_locked(s->ctx, p, &st, &kernel);
	if (r)
		return leave(r);
	return leave(submit_locked(&(struct submit){
		.name = call, .detail = kernel, .class = SIM_WORK, .stream = s, .step = st }, NULL));
}

#define SHAPE unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared
#define PARAMS(e)                                                                                                      \
	(&(CUDA_KERNEL_NODE_PARAMS){ .func = f, .gridDimX = gx, .gridDimY = gy, .gridDimZ = gz, .blockDimX = bx,       \
				     .blockDimY = by, .blockDimZ = bz, .sharedMemBytes = shared, .kernelParams = params, \
				     .extra = e })

EXPORT CUresult cuLaunchKernel(CUfunction f, SHAPE, CUstream h, void **params, void **extra)
{
	return launch_kernel(PARAMS(extra), h, "cuLaunchKernel", false);
}

EXPORT CUresult cuLaunchKernel_ptsz(CUfunction f, SHAPE, CUstream h, void **params, void **extra)
{
	return launch_kernel(PARAMS(extra), h, "cuLaunchKernel", true);
}

EXPORT CUresult cuLaunchCooperativeKernel(CUfunction f, SHAPE, CUstream h, void **params)
{
	return launch_kernel(PARAMS(NULL), h, "cuLaunchCooperativeKernel", false);
}

EXPORT CUresult cuLaunchCooperativeKernel_ptsz(CUfunction f, SHAPE, CUstream h, void **params)
{
	return launch_kernel(PARAMS(NULL), h, "cuLaunchCooperativeKernel", true);
}

/* Launch attributes (clusters, priorities, programmatic events) change nothing here. */
static CUresult launch_ex(const CUlaunchConfig *c, CUfunction f, void **params, void **extra, bool per_thread)
{
	if (!c)
		return CUDA_ERROR_INVALID_VALUE;
	return launch_kernel(&(CUDA_KERNEL_NODE_PARAMS){
			      .func = f, .gridDimX = c->gridDimX, .gridDimY = c->gridDimY, .gridDimZ = c->gridDimZ,
			      .blockDimX = c->blockDimX, .blockDimY = c->blockDimY, .blockDimZ = c->blockDimZ,
			      .sharedMemBytes = c->sharedMemBytes, .kernelParams = params, .extra = extra },
		      c->hStream, "cuLaunchKernelEx", per_thread);
}

EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **params, void **extra)
{
	return launch_ex(c, f, params, extra, false);
}

EXPORT CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *c, CUfunction f, void **params, void **extra)
{
	return launch_ex(c, f, params, extra, true);
}
