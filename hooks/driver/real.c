/* SPDX-License-Identifier: Apache-2.0 */
/* The real driver: loaded by its path, asked by its handle, and by nothing else. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdio.h>

#include "driver.h"

struct range {
	uintptr_t from, to;
};

/* No lock of ours is held here: the loader has its own, and a constructor that
 * runs under it may call us. Whoever comes first stores; all find the same. */
static _Atomic(void *) handle;     /* of the real driver; NULL before load */
static atomic_bool failed;         /* it can not be loaded; said */
static atomic_bool resolved;       /* all of vgpu_real stands */
_Atomic uintptr_t vgpu_real_from, vgpu_real_to;

static CUresult not_supported(void)
{
	return CUDA_ERROR_NOT_SUPPORTED;
}

static CUresult no_driver(void)
{
	return CUDA_ERROR_SYSTEM_NOT_READY;
}

struct search {
	uintptr_t address;
	struct range found;
};

static int containing(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct search *s = arg;
	struct range r = { UINTPTR_MAX, 0 };

	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		uintptr_t from = info->dlpi_addr + p->p_vaddr;

		if (p->p_type != PT_LOAD)
			continue;
		r.from = from < r.from ? from : r.from;
		r.to = from + p->p_memsz > r.to ? from + p->p_memsz : r.to;
	}
	if (s->address < r.from || s->address >= r.to)
		return 0;
	s->found = r;
	return 1;
}

static struct range range_of(const void *address)
{
	struct search s = { .address = (uintptr_t)address };

	dl_iterate_phdr(containing, &s);
	return s.found;
}

static bool load(void)
{
	void *h, *any, *expected = NULL;
	struct range r;

	if (atomic_load_explicit(&handle, memory_order_acquire))
		return true;
	if (atomic_load_explicit(&failed, memory_order_relaxed))
		return false;
	/* Loaded already, as we need it by the same path; LOCAL adds it to no scope. */
	h = dlopen(VGPU_REAL_PATH, RTLD_NOW | RTLD_LOCAL);
	if (!h) {
		const char *why = dlerror();

		if (!atomic_exchange_explicit(&failed, true, memory_order_relaxed))
			fprintf(stderr, "vgpu: the CUDA driver cannot be loaded: %s\n", why ? why : "unknown error");
		return false;
	}
	any = dlsym(h, "cuInit");
	if (any) {
		r = range_of(any);
		atomic_store_explicit(&vgpu_real_from, r.from, memory_order_relaxed);
		atomic_store_explicit(&vgpu_real_to, r.to, memory_order_relaxed);
	}
	if (!atomic_compare_exchange_strong_explicit(&handle, &expected, h, memory_order_acq_rel, memory_order_acquire))
		dlclose(h); /* another thread's count keeps it */
	return true;
}

bool vgpu_in_ours(const void *address)
{
	static _Atomic uintptr_t from, to;
	uintptr_t a = (uintptr_t)address;
	struct range r;

	if (!atomic_load_explicit(&from, memory_order_acquire)) {
		r = range_of(vgpu_real);
		atomic_store_explicit(&to, r.to, memory_order_relaxed);
		atomic_store_explicit(&from, r.from, memory_order_release);
	}
	return a >= atomic_load_explicit(&from, memory_order_relaxed) && a < atomic_load_explicit(&to, memory_order_relaxed);
}

bool vgpu_has(unsigned name, void **address)
{
	void *p = NULL;

	/* Acquire: pairs with the release in vgpu_resolve_all. */
	if (atomic_load_explicit(&resolved, memory_order_acquire)) {
		p = __atomic_load_n(&vgpu_real[name], __ATOMIC_RELAXED);
		if (p == (void *)not_supported || p == (void *)no_driver)
			p = NULL;
		*address = p;
		return p != NULL;
	}
	if (load())
		p = dlsym(atomic_load_explicit(&handle, memory_order_relaxed), vgpu_names[name].name);
	/* Never ourselves: a trampoline that leads to itself would not end. */
	if (p && vgpu_in_ours(p))
		p = NULL;
	*address = p;
	return p != NULL;
}

void *vgpu_resolve(unsigned name)
{
	void *p;

	if (!vgpu_has(name, &p))
		p = atomic_load_explicit(&handle, memory_order_relaxed) ? (void *)not_supported : (void *)no_driver;
	/* Relaxed: every thread stores the same value. */
	__atomic_store_n(&vgpu_real[name], p, __ATOMIC_RELAXED);
	return p;
}

void vgpu_resolve_all(void)
{
	if (atomic_load_explicit(&resolved, memory_order_acquire))
		return;
	for (unsigned i = 0; i < VGPU_NAMES; i++)
		vgpu_resolve(i);
	atomic_store_explicit(&resolved, true, memory_order_release);
}
