/* SPDX-License-Identifier: Apache-2.0 */
/* The linker: PTX texts one behind the other. The "cubin" it makes is text too. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>

#include "module.h"

struct link {
	struct handle h;
	char *text;
	size_t size;
};

static CUresult enter_link(CUlinkState h, struct link **l)
{
	CUresult r = enter();

	if (r)
		return r;
	lock();
	*l = handle_get_locked(h, KIND_LINK);
	return *l ? CUDA_SUCCESS : leave(CUDA_ERROR_INVALID_HANDLE);
}

EXPORT CUresult cuLinkCreate_v2(unsigned int n, CUjit_option *options, void **values, CUlinkState *out)
{
	struct context *ctx;
	CUresult r = enter_context(&ctx);

	(void)n;
	(void)options;
	(void)values;
	if (r)
		return r;
	struct link *l = out ? calloc(1, sizeof(*l)) : NULL;
	if (!l)
		return leave(out ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE);
	handle_add_locked(l, KIND_LINK);
	*out = (CUlinkState)l;
	return leave(CUDA_SUCCESS);
}

static CUresult add(struct link *l, const char *data, size_t size)
{
	size_t n = strnlen(data, size);
	char *text = realloc(l->text, l->size + n + 2);

	if (!text)
		return CUDA_ERROR_OUT_OF_MEMORY;
	memcpy(text + l->size, data, n);
	l->text = text;
	l->size += n;
	text[l->size++] = '\n';
	text[l->size] = 0;
	return CUDA_SUCCESS;
}

EXPORT CUresult cuLinkAddData_v2(CUlinkState h, CUjitInputType type, void *data, size_t size, const char *name, unsigned int n,
				 CUjit_option *options, void **values)
{
	struct link *l;
	CUresult r = enter_link(h, &l);

	(void)name;
	(void)n;
	(void)options;
	(void)values;
	if (r)
		return r;
	if (type != CU_JIT_INPUT_PTX)
		return leave(CUDA_ERROR_NO_BINARY_FOR_GPU);
	return leave(data ? add(l, data, size) : CUDA_ERROR_INVALID_VALUE);
}

EXPORT CUresult cuLinkAddFile_v2(CUlinkState h, CUjitInputType type, const char *path, unsigned int n, CUjit_option *options, void **values)
{
	char *text = path ? read_image(path) : NULL;
	CUresult r;

	if (!text)
		return path ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
	r = cuLinkAddData_v2(h, type, text, strlen(text) + 1, path, n, options, values);
	free(text);
	return r;
}

EXPORT CUresult cuLinkComplete(CUlinkState h, void **out, size_t *size)
{
	struct ptx ptx;
	struct link *l;
	char why[300];
	CUresult r = enter_link(h, &l);

	if (r)
		return r;
	if (!out || !l->text)
		return leave(CUDA_ERROR_INVALID_VALUE);
	r = module_check(l->text, &ptx, why, sizeof(why));
	ptx_free(&ptx);
	if (r)
		return leave(r);
	*out = l->text;
	if (size)
		*size = l->size + 1;
	return leave(CUDA_SUCCESS);
}

EXPORT CUresult cuLinkDestroy(CUlinkState h)
{
	struct link *l;
	CUresult r = enter_link(h, &l);

	if (r)
		return r;
	handle_remove_locked(l);
	free(l->text);
	free(l);
	return leave(CUDA_SUCCESS);
}
