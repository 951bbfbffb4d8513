/* SPDX-License-Identifier: Apache-2.0 */
/* Libraries: modules that no context owns. In each context they are loaded at first use. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "module.h"

struct loaded {
	struct loaded *next;
	struct context *ctx;
	uint64_t ctx_id;
	struct module *module;
};

struct kernel {
	struct handle h;
	struct library *library;
	struct kernel *next;
	char *name;
};

struct library {
	struct handle h;
	char *text;
	struct ptx ptx;
	struct loaded *loaded;
	struct kernel *kernels;
};

static CUresult library_module(struct library *l, struct context *ctx, struct module **out)
{
	char why[300];
	CUresult r;

	for (struct loaded *i = l->loaded; i; i = i->next)
		if (i->ctx_id == ctx->id) {
			*out = i->module;
			return CUDA_SUCCESS;
		}
	r = module_load_locked(ctx, l->text, out, why, sizeof(why));
	if (r)
		return r;
	struct loaded *n = calloc(1, sizeof(*n));
	if (!n)
		return CUDA_ERROR_OUT_OF_MEMORY;
	*n = (struct loaded){ l->loaded, ctx, ctx->id, *out };
	l->loaded = n;
	return CUDA_SUCCESS;
}

CUresult kernel_function_locked(struct context *ctx, const void *h, struct function **out)
{
	struct kernel *k = handle_get_locked(h, KIND_KERNEL);
	struct module *m;
	CUresult r;

	if (!k)
		return CUDA_ERROR_INVALID_HANDLE;
	r = library_module(k->library, ctx, &m);
	if (r)
		return r;
	*out = module_function_locked(m, k->name);
	return *out ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

static void library_free(struct library *l)
{
	while (l->loaded) {
		struct loaded *i = l->loaded;

		l->loaded = i->next;
		if (!i->ctx->destroyed)
			module_unload_locked(i->module);
		free(i);
	}
	while (l->kernels) {
		struct kernel *k = l->kernels;

		l->kernels = k->next;
		handle_remove_locked(k);
		free(k->name);
		free(k);
	}
	ptx_free(&l->ptx);
	free(l->text);
	free(l);
}

static CUresult load(CUlibrary *out, const char *text, unsigned n, CUjit_option *options, void **values)
{
	uint64_t from = clock_ns();
	char why[300] = "";
	CUresult r = enter();

	if (r)
		return r;
	if (!out || !text)
		return CUDA_ERROR_INVALID_VALUE;
	lock();
	struct library *l = calloc(1, sizeof(*l));
	if (!l)
		return leave(CUDA_ERROR_OUT_OF_MEMORY);
	r = module_check(text, &l->ptx, why, sizeof(why));
	jit_report(why, n, options, values);
	if (!r) {
		l->text = strdup(text);
		if (!l->text)
			r = CUDA_ERROR_OUT_OF_MEMORY;
	}
	if (r) {
		library_free(l);
	} else {
		handle_add_locked(l, KIND_LIBRARY);
		*out = (CUlibrary)l;
	}
	log_setup("cuLibraryLoadData", *why ? why : NULL, NULL, from);
	return leave(r);
}

EXPORT CUresult cuLibraryLoadData(CUlibrary *out, const void *code, CUjit_option *jit, void **jit_values, unsigned int n_jit,
				  CUlibraryOption *options, void **values, unsigned int n)
{
	(void)options;
	(void)values;
	(void)n;
	return load(out, code, n_jit, jit, jit_values);
}

EXPORT CUresult cuLibraryLoadFromFile(CUlibrary *out, const char *path, CUjit_option *jit, void **jit_values, unsigned int n_jit,
				      CUlibraryOption *options, void **values, unsigned int n)
{
	char *text = path ? read_image(path) : NULL;
	CUresult r;

	(void)options;
	(void)values;
	(void)n;
	if (!text)
		return path ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
	r = load(out, text, n_jit, jit, jit_values);
	free(text);
	return r;
}

static CUresult enter_library(CUlibrary h, struct library **l)
{
	CUresult r = enter();

	if (r)
		return r;
	lock();
	*l = handle_get_locked(h, KIND_LIBRARY);
	return *l ? CUDA_SUCCESS : leave(CUDA_ERROR_INVALID_HANDLE);
}

EXPORT CUresult cuLibraryUnload(CUlibrary h)
{
	struct library *l;
	CUresult r = enter_library(h, &l);

	if (r)
		return r;
	handle_remove_locked(l);
	library_free(l);
	return leave(CUDA_SUCCESS);
}

static struct kernel *kernel_get(struct library *l, const char *name)
{
	struct kernel *k;

	for (k = l->kernels; k; k = k->next)
		if (strcmp(k->name, name) == 0)
			return k;
	k = calloc(1, sizeof(*k));
	if (!k || !(k->name = strdup(name))) {
		free(k);
		return NULL;
	}
	k->library = l;
	k->next = l->kernels;
	l->kernels = k;
	handle_add_locked(k, KIND_KERNEL);
	return k;
}

EXPORT CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary h, const char *name)
{
	struct library *l;
	CUresult r = enter_library(h, &l);

	if (r)
		return r;
	if (!out || !name)
		return leave(CUDA_ERROR_INVALID_VALUE);
	for (const struct entry *e = l->ptx.entries; e; e = e->next)
		if (strcmp(e->name, name) == 0) {
			*out = (CUkernel)kernel_get(l, name);
			return leave(*out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY);
		}
	return leave(CUDA_ERROR_NOT_FOUND);
}

EXPORT CUresult cuLibraryGetKernelCount(unsigned int *count, CUlibrary h)
{
	struct library *l;
	CUresult r = enter_library(h, &l);

	if (r)
		return r;
	if (!count)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*count = 0;
	for (const struct entry *e = l->ptx.entries; e; e = e->next)
		++*count;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuLibraryGetModule(CUmodule *out, CUlibrary h)
{
	struct context *ctx;
	struct module *m;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	struct library *l = handle_get_locked(h, KIND_LIBRARY);
	if (!l || !out)
		return leave(l ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_INVALID_HANDLE);
	r = library_module(l, ctx, &m);
	if (!r)
		*out = (CUmodule)m;
	return leave(r);
}

EXPORT CUresult cuLibraryGetGlobal(CUdeviceptr *out, size_t *size, CUlibrary h, const char *name)
{
	CUmodule m;
	CUresult r = cuLibraryGetModule(&m, h);

	return r ? r : cuModuleGetGlobal_v2(out, size, m, name);
}

EXPORT CUresult cuKernelGetFunction(CUfunction *out, CUkernel h)
{
	struct context *ctx;
	struct function *f;
	CUresult r = enter_context(&ctx);

	if (r)
		return r;
	if (!out)
		return leave(CUDA_ERROR_INVALID_VALUE);
	r = kernel_function_locked(ctx, h, &f);
	if (!r)
		*out = (CUfunction)f;
	return leave(r);
}

static CUresult enter_kernel(CUkernel h, struct kernel **k)
{
	CUresult r = enter();

	if (r)
		return r;
	lock();
	*k = handle_get_locked(h, KIND_KERNEL);
	return *k ? CUDA_SUCCESS : leave(CUDA_ERROR_INVALID_HANDLE);
}

EXPORT CUresult cuKernelGetName(const char **name, CUkernel h)
{
	struct kernel *k;
	CUresult r = enter_kernel(h, &k);

	if (r)
		return r;
	if (!name)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*name = k->name;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuKernelGetLibrary(CUlibrary *out, CUkernel h)
{
	struct kernel *k;
	CUresult r = enter_kernel(h, &k);

	if (r)
		return r;
	if (!out)
		return leave(CUDA_ERROR_INVALID_VALUE);
	*out = (CUlibrary)k->library;
	return leave(CUDA_SUCCESS);
}
