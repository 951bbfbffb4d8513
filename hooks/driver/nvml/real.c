/* SPDX-License-Identifier: Apache-2.0 */
/* The real NVML: loaded by its path, asked by its handle, and by nothing else. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdio.h>

#include "nvml.h"

/* What becomes of a name; nvml.tsv has the same words. */
enum class { VGPU_OURS, VGPU_PASS, VGPU_CHANGE, VGPU_HIDDEN };

static const struct {
	const char *name;
	enum class class;
} names[VGPU_NAMES] = {
#include "gen/names.inc"
};

VGPU_TLS unsigned vgpu_nested;

/* No lock is held here: the loader has its own. Whoever comes first stores; all
 * find the same. */
static _Atomic(void *) handle;     /* of the real library; NULL before load */
static atomic_bool failed;         /* it can not be loaded; said */

/* These stand for functions with any parameters. */
static nvmlReturn_t not_found(void)
{
	return NVML_ERROR_FUNCTION_NOT_FOUND;
}

static nvmlReturn_t no_library(void)
{
	return NVML_ERROR_LIBRARY_NOT_FOUND;
}

static nvmlReturn_t no_permission(void)
{
	return vgpu_nvml_inits ? NVML_ERROR_NO_PERMISSION : NVML_ERROR_UNINITIALIZED;
}

static nvmlReturn_t not_supported(void)
{
	return vgpu_nvml_inits ? NVML_ERROR_NOT_SUPPORTED : NVML_ERROR_UNINITIALIZED;
}

static void *load(void)
{
	void *h = atomic_load_explicit(&handle, memory_order_acquire), *expected = NULL;

	if (h || atomic_load_explicit(&failed, memory_order_relaxed))
		return h;
	/* Loaded already, as we need it by the same path; LOCAL adds it to no scope. */
	h = dlopen(VGPU_REAL_PATH, RTLD_NOW | RTLD_LOCAL);
	if (!h) {
		const char *why = dlerror();

		if (!atomic_exchange_explicit(&failed, true, memory_order_relaxed))
			fprintf(stderr, "vgpu: NVML cannot be loaded: %s\n", why ? why : "unknown error");
		return NULL;
	}
	if (!atomic_compare_exchange_strong_explicit(&handle, &expected, h, memory_order_acq_rel, memory_order_acquire))
		dlclose(h); /* another thread's count keeps it */
	return h;
}

static void *find(unsigned name)
{
	void *h = load(), *p = h ? dlsym(h, names[name].name) : NULL;
	Dl_info ours, its;

	if (!h)
		return (void *)no_library;
	/* Never ourselves: a trampoline that leads to itself would not end. */
	if (p && dladdr((void *)find, &ours) && dladdr(p, &its) && ours.dli_fbase == its.dli_fbase)
		p = NULL;
	return p ? p : (void *)not_found;
}

void *vgpu_resolve(unsigned name)
{
	void *p;

	switch (names[name].class) {
	case VGPU_CHANGE:
		p = (void *)no_permission;
		break;
	case VGPU_HIDDEN:
		p = (void *)not_supported;
		break;
	default:
		p = find(name);
	}
	/* Relaxed: every thread stores the same value. */
	__atomic_store_n(&vgpu_real[name], p, __ATOMIC_RELAXED);
	return p;
}
