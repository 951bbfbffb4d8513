/* SPDX-License-Identifier: Apache-2.0 */
/*
 * PTX text, as far as a loader must know it: the entries with the layout of
 * their parameters, and the global variables with their sizes. Bodies of
 * functions are skipped.
 */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim.h"

struct reader {
	const char *p;
	char token[256];
	struct ptx *out;
};

static bool bad(struct reader *r, const char *why)
{
	snprintf(r->out->why, sizeof(r->out->why), "%s near '%.32s'", why, r->token);
	return false;
}

static void skip_space(struct reader *r)
{
	for (;;) {
		while (isspace((unsigned char)*r->p))
			r->p++;
		if (r->p[0] == '/' && r->p[1] == '/') {
			while (*r->p && *r->p != '\n')
				r->p++;
		} else if (r->p[0] == '/' && r->p[1] == '*') {
			const char *end = strstr(r->p + 2, "*/");

			r->p = end ? end + 2 : r->p + strlen(r->p);
		} else {
			return;
		}
	}
}

static bool word_char(char c)
{
	return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '.' || c == '%' || c == '@';
}

/* The next token: a word, or one other character; "" at the end. */
static const char *next(struct reader *r)
{
	size_t n = 0;

	skip_space(r);
	if (*r->p == '"') {
		const char *end = strchr(r->p + 1, '"');

		r->p = end ? end + 1 : r->p + strlen(r->p);
		strcpy(r->token, "\"");
		return r->token;
	}
	if (*r->p && !word_char(*r->p))
		r->token[n++] = *r->p++;
	else
		while (word_char(*r->p)) {
			if (n < sizeof(r->token) - 1)
				r->token[n++] = *r->p;
			r->p++;
		}
	r->token[n] = 0;
	return r->token;
}

static bool is(const struct reader *r, const char *s)
{
	return strcmp(r->token, s) == 0;
}

/* ".u32" -> 4; 0: not a type */
static uint32_t type_size(const char *t)
{
	static const struct {
		const char *name;
		uint32_t size;
	} types[] = {
		{ ".b8", 1 }, { ".u8", 1 }, { ".s8", 1 }, { ".b16", 2 }, { ".u16", 2 }, { ".s16", 2 }, { ".f16", 2 },
		{ ".b32", 4 }, { ".u32", 4 }, { ".s32", 4 }, { ".f32", 4 }, { ".f16x2", 4 },
		{ ".b64", 8 }, { ".u64", 8 }, { ".s64", 8 }, { ".f64", 8 }, { ".b128", 16 },
	};

	for (size_t i = 0; i < sizeof(types) / sizeof(types[0]); i++)
		if (strcmp(t, types[i].name) == 0)
			return types[i].size;
	return 0;
}

/* [.align N] .type name[count] ...: up to what follows it, which is in token. */
static bool declaration(struct reader *r, uint32_t *align, uint32_t *element, uint64_t *size, char **name)
{
	uint32_t vector = 1;

	*align = 0;
	*element = 0;
	for (; r->token[0] == '.'; next(r)) {
		if (is(r, ".align"))
			*align = (uint32_t)strtoul(next(r), NULL, 10);
		else if (is(r, ".v2") || is(r, ".v4"))
			vector = (uint32_t)(r->token[2] - '0');
		else if (type_size(r->token))
			*element = type_size(r->token);
	}
	if (!*element || !r->token[0])
		return bad(r, "a declaration without a type");
	*element *= vector;
	*size = *element;
	if (name)
		*name = strdup(r->token);
	next(r);
	while (is(r, "[")) {
		uint64_t n = strtoull(next(r), NULL, 0);

		if (n > 1u << 30 || !is(r, "]"))
			next(r);
		*size *= n ? n : 1;
		next(r);
	}
	return true;
}

static bool parameters(struct reader *r, struct entry *e)
{
	uint64_t offset = 0;

	for (next(r); !is(r, ")"); ) {
		uint32_t align, element;
		uint64_t size;

		if (is(r, ",")) {
			next(r);
			continue;
		}
		if (!is(r, ".param"))
			return bad(r, "a parameter list that is not one");
		next(r);
		if (!declaration(r, &align, &element, &size, NULL))
			return false;
		if (!align)
			align = element;
		offset = (offset + align - 1) / align * align;
		struct param *p = realloc(e->params, (e->n_params + 1) * sizeof(*p));
		if (!p || offset + size > 4096 * 8)
			return bad(r, "too many parameters");
		e->params = p;
		p[e->n_params++] = (struct param){ (uint32_t)offset, (uint32_t)size };
		offset += size;
	}
	e->bytes = (uint32_t)offset;
	next(r);
	return true;
}

static bool skip_body(struct reader *r)
{
	int depth = 0;

	for (; r->token[0]; next(r)) {
		if (is(r, "{"))
			depth++;
		else if (is(r, "}") && --depth == 0)
			return true;
		else if (is(r, ";") && depth == 0)
			return true; /* a declaration only */
	}
	return bad(r, "a function without an end");
}

static bool entry(struct reader *r)
{
	struct entry *e = calloc(1, sizeof(*e));

	if (!e)
		return bad(r, "out of memory");
	e->next = r->out->entries;
	r->out->entries = e;
	e->name = strdup(next(r));
	next(r);
	if (is(r, "(") && !parameters(r, e))
		return false;
	return skip_body(r);
}

static bool global(struct reader *r)
{
	uint32_t align, element;
	uint64_t size;
	struct global *g = calloc(1, sizeof(*g));

	if (!g)
		return bad(r, "out of memory");
	g->next = r->out->globals;
	r->out->globals = g;
	next(r);
	if (!declaration(r, &align, &element, &size, &g->name))
		return false;
	g->size = size;
	while (!is(r, ";") && r->token[0])
		next(r);
	return true;
}

bool ptx_parse(const char *text, struct ptx *out)
{
	struct reader r = { .p = text, .out = out };
	bool version = false, target = false;

	memset(out, 0, sizeof(*out));
	while (*next(&r)) {
		if (is(&r, ".version")) {
			version = true;
			next(&r);
		} else if (is(&r, ".target")) {
			target = true;
		} else if (is(&r, ".entry")) {
			if (!entry(&r))
				return false;
		} else if (is(&r, ".func")) {
			if (!skip_body(&r))
				return false;
		} else if (is(&r, ".global") || is(&r, ".const")) {
			if (!global(&r))
				return false;
		}
		if (!version)
			return bad(&r, "no .version directive first");
	}
	if (!version || !target)
		return bad(&r, "no .version and .target directive");
	return true;
}

void ptx_free(struct ptx *p)
{
	while (p->entries) {
		struct entry *e = p->entries;

		p->entries = e->next;
		free(e->name);
		free(e->params);
		free(e);
	}
	while (p->globals) {
		struct global *g = p->globals;

		p->globals = g->next;
		free(g->name);
		free(g);
	}
}
