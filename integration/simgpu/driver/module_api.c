/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"
#include "module.h"

/* Options come as values of pointer size, or pointers. */
void jit_report(const char *why, unsigned n, CUjit_option *options, void **values)
{
	char *buffer = NULL;
	void **size_at = NULL;

	for (unsigned i = 0; options && values && i < n; i++) {
		if (options[i] == CU_JIT_ERROR_LOG_BUFFER)
			buffer = values[i];
		else if (options[i] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES)
			size_at = &values[i];
		else if (options[i] == CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES)
			values[i] = NULL; /* nothing was written */
	}
	if (!size_at)
		return;
	size_t room = (size_t)(uintptr_t)*size_at;
	size_t n_why = *why ? strlen(why) + 1 : 0;
	if (buffer && room && n_why)
		snprintf(buffer, room, "%s", why);
	*size_at = (void *)(uintptr_t)(n_why < room ? n_why : room);
}

static CUresult load(CUmodule *out, const void *image, unsigned n, CUjit_option *options, void **values, const char *name)
{
	uint64_t from = clock_ns();
	struct context *ctx;
	struct module *m;
	char why[300];
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	if (!out || !image)
		return leave(CUDA_ERROR_INVALID_VALUE);
	r = module_load_locked(ctx, image, &m, why, sizeof(why));
	jit_report(why, n, options, values);
	if (!r)
		*out = (CUmodule)m;
	log_setup(name, r && *why ? why : NULL, ctx, from);
	return leave(r);
}

EXPORT CUresult cuModuleLoadData(CUmodule *out, const void *image)
{
	return load(out, image, 0, NULL, NULL, "cuModuleLoadData");
}

EXPORT CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned int n, CUjit_option *options, void **values)
{
	return load(out, image, n, options, values, "cuModuleLoadDataEx");
}

EXPORT CUresult cuModuleLoadFatBinary(CUmodule *out, const void *image)
{
	return load(out, image, 0, NULL, NULL, "cuModuleLoadFatBinary");
}

/* The whole file with a 0 behind it, or NULL. */
char *read_image(const char *path)
{
	FILE *f = fopen(path, "re");
	char *text = NULL;
	size_t n = 0, room = 0;

	if (!f)
		return NULL;
	for (;;) {
		if (n + 1 >= room) {
			char *p = realloc(text, room = room ? room * 2 : 65536);

			if (!p)
				break;
			text = p;
		}
		size_t got = fread(text + n, 1, room - n - 1, f);
		n += got;
		text[n] = 0;
		if (got == 0)
			break;
	}
	fclose(f);
	return text;
}

EXPORT CUresult cuModuleLoad(CUmodule *out, const char *path)
{
	char *text;
	CUresult r;

	if (!out || !path)
		return CUDA_ERROR_INVALID_VALUE;
	text = read_image(path);
	if (!text)
		return CUDA_ERROR_FILE_NOT_FOUND;
	r = load(out, text, 0, NULL, NULL, "cuModuleLoad");
	free(text);
	return r;
}

static CUresult enter_module(CUmodule h, struct module **m)
{
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	*m = handle_get_locked(h, KIND_MODULE);
	return *m ? CUDA_SUCCESS : leave(CUDA_ERROR_INVALID_HANDLE);
}

EXPORT CUresult cuModuleUnload(CUmodule h)
{
	uint64_t from = clock_ns();
	struct module *m;
	CUresult r = enter_module(h, &m);

	if (r)
		return r;
	struct context *ctx = m->ctx;
	module_unload_locked(m);
	log_setup("cuModuleUnload", NULL, ctx, from);
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuModuleGetFunction(CUfunction *out, CUmodule h, const char *name)
{
	struct module *m;
	CUresult r = enter_module(h, &m);

	if (r)
		return r;
	if (!out || !name)
		return leave(CUDA_ERROR_INVALID_VALUE);
	struct function *f = module_function_locked(m, name);
	*out = (CUfunction)f;
	return leave(f ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND);
}

EXPORT CUresult cuModuleGetFunctionCount(unsigned int *count, CUmodule h)
{
	struct module *m;
	CUresult r = enter_module(h, &m);

	if (r)
		return r;
	if (!count)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*count = 0;
	for (const struct entry *e = m->ptx.entries; e; e = e->next)
		++*count;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr *out, size_t *size, CUmodule h, const char *name)
{
	struct module *m;
	CUresult r = enter_module(h, &m);

	if (r)
		return r;
	size_t i = 0;
	for (const struct global *g = m->ptx.globals; g; g = g->next, i++) {
		if (!name || strcmp(g->name, name) != 0)
			continue;
		if (out)
			*out = m->global_address[i];
		if (size)
			*size = g->size;
		return leave(CUDA_SUCCESS);
	}
	return leave(CUDA_ERROR_NOT_FOUND);
}

EXPORT CUresult cuModuleGetLoadingMode(CUmoduleLoadingMode *mode)
{
	CUresult r = enter();

	if (r)
		return r;
	if (!mode)
		return CUDA_ERROR_INVALID_VALUE;
	*mode = CU_MODULE_EAGER_LOADING;
	return CUDA_SUCCESS;
}
