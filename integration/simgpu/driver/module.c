/* SPDX-License-Identifier: Apache-2.0 */
/* Modules: loaded from PTX text, their functions matched to bodies by name. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "module.h"

#define CODE_PAGE (2ull << 20)

static CUresult refuse(CUresult r, char *why, size_t size, const char *format, const char *name)
{
	snprintf(why, size, format, name);
	debug("module refused: %s", why);
	return r;
}

/* The body must want the parameters that the PTX declares. */
static bool fits(const struct body *b, const struct entry *e)
{
	if (b->n_params != e->n_params)
		return false;
	for (uint32_t i = 0; i < e->n_params; i++)
		if (b->size[i] != e->params[i].size)
			return false;
	return true;
}

static CUresult check_entries(const struct ptx *p, char *why, size_t size)
{
	for (const struct entry *e = p->entries; e; e = e->next) {
		const struct body *b = body_find(e->name);

		if (!b)
			return refuse(CUDA_ERROR_NO_BINARY_FOR_GPU, why, size,
				      "the simulated GPU has no body for the entry '%s'", e->name);
		if (!fits(b, e))
			return refuse(CUDA_ERROR_INVALID_PTX, why, size,
				      "the entry '%s' has other parameters than its body", e->name);
	}
	return CUDA_SUCCESS;
}

/* Code takes whole large pages of the GPU. */
static CUresult take_code(struct module *m, const void *image)
{
	uint64_t n = (strlen(image) + CODE_PAGE - 1) / CODE_PAGE * CODE_PAGE;

	if (!machine_charge(&sim.mc, m->ctx->gpu, n))
		return CUDA_ERROR_OUT_OF_MEMORY;
	m->charged = n;
	return CUDA_SUCCESS;
}

static CUresult make_globals(struct module *m)
{
	size_t n = 0, i = 0;

	for (const struct global *g = m->ptx.globals; g; g = g->next)
		n++;
	m->global_address = calloc(n + 1, sizeof(*m->global_address));
	if (!m->global_address)
		return CUDA_ERROR_OUT_OF_MEMORY;
	for (const struct global *g = m->ptx.globals; g; g = g->next, i++) {
		CUresult r = memory_alloc_locked(m->ctx, g->size, MEMORY_DEVICE, 0, &m->global_address[i]);

		if (r)
			return r;
	}
	return CUDA_SUCCESS;
}

static void module_free(struct module *m)
{
	size_t i = 0;

	for (const struct global *g = m->ptx.globals; g && m->global_address; g = g->next, i++)
		if (m->global_address[i])
			memory_free_locked(m->global_address[i]);
	while (m->functions) {
		struct function *f = m->functions;

		m->functions = f->next;
		handle_remove_locked(f);
		free(f->prepared);
		free(f);
	}
	if (m->charged)
		machine_uncharge(&sim.mc, m->ctx->gpu, m->charged);
	free(m->global_address);
	ptx_free(&m->ptx);
	free(m);
}

CUresult module_check(const void *image, struct ptx *out, char *why, size_t size)
{
	static const char elf[] = "\x7f" "ELF", fat[] = "\x50\xed\x55\xba", wrapper[] = "\xb1\x43\x62\x46";

	*why = 0;
	memset(out, 0, sizeof(*out));
	if (!strncmp(image, elf, 4) || !strncmp(image, fat, 4) || !strncmp(image, wrapper, 4))
		return refuse(CUDA_ERROR_NO_BINARY_FOR_GPU, why, size, "the simulated GPU runs PTX text, not %s",
			      "machine code");
	if (!ptx_parse(image, out))
		return refuse(CUDA_ERROR_INVALID_PTX, why, size, "%s", out->why);
	return check_entries(out, why, size);
}

CUresult module_load_locked(struct context *ctx, const void *image, struct module **out, char *why, size_t size)
{
	struct module *m = calloc(1, sizeof(*m));
	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	m->ctx = ctx;
	CUresult r = module_check(image, &m->ptx, why, size);
	if (!r)
		r = take_code(m, image);
	if (!r)
		r = make_globals(m);
	if (r) {
		module_free(m);
		return r;
	}
	handle_add_locked(m, KIND_MODULE);
	m->next = ctx->modules;
	ctx->modules = m;
	*out = m;
	return CUDA_SUCCESS;
}

void module_unload_locked(struct module *m)
{
	context_sync_locked(m->ctx);
	for (struct module **p = &m->ctx->modules; *p; p = &(*p)->next)
		if (*p == m) {
			*p = m->next;
			break;
		}
	handle_remove_locked(m);
	module_free(m);
}

void module_free_context_locked(struct context *ctx)
{
	while (ctx->modules)
		module_unload_locked(ctx->modules);
}

struct function *module_function_locked(struct module *m, const char *name)
{
	struct function *f;

	for (f = m->functions; f; f = f->next)
		if (strcmp(f->entry->name, name) == 0)
			return f;
	for (struct entry *e = m->ptx.entries; e; e = e->next) {
		if (strcmp(e->name, name) != 0)
			continue;
		f = calloc(1, sizeof(*f));
		if (!f)
			return NULL;
		f->module = m;
		f->entry = e;
		f->body = body_find(name);
		f->next = m->functions;
		m->functions = f;
		handle_add_locked(f, KIND_FUNCTION);
		return f;
	}
	return NULL;
}
