/* SPDX-License-Identifier: Apache-2.0 */
/* The real driver: loaded by its path, asked by its handle, and by nothing else. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>

#include "driver.h"

struct range {
	uintptr_t from, to;
};

static struct {
	pthread_once_t once;
	void *handle;              /* constant after the once */
	struct range ours;
	/* Read on every hooked call, without the once: 0..0 until it is known. */
	_Atomic uintptr_t from, to;
} real = { .once = PTHREAD_ONCE_INIT };

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

static void load(void)
{
	struct range r;
	void *any;

	real.ours = range_of(vgpu_real);
	/* Loaded already, as we need it by the same path; LOCAL adds it to no scope. */
	real.handle = dlopen(VGPU_REAL_PATH, RTLD_NOW | RTLD_LOCAL);
	if (!real.handle) {
		fprintf(stderr, "vgpu: the CUDA driver cannot be loaded: %s\n", dlerror());
		return;
	}
	any = dlsym(real.handle, "cuInit");
	if (!any)
		return;
	r = range_of(any);
	atomic_store_explicit(&real.from, r.from, memory_order_release);
	atomic_store_explicit(&real.to, r.to, memory_order_release);
}

bool vgpu_in_real(const void *address)
{
	uintptr_t a = (uintptr_t)address;

	return a >= atomic_load_explicit(&real.from, memory_order_relaxed) &&
	       a < atomic_load_explicit(&real.to, memory_order_relaxed);
}

bool vgpu_in_ours(const void *address)
{
	pthread_once(&real.once, load);
	return (uintptr_t)address >= real.ours.from && (uintptr_t)address < real.ours.to;
}

bool vgpu_has(unsigned name, void **address)
{
	void *p = NULL;

	pthread_once(&real.once, load);
	if (real.handle)
		p = dlsym(real.handle, vgpu_names[name].name);
	*address = p;
	/* Never ourselves: a trampoline that leads to itself would not end. */
	return p && !vgpu_in_ours(p);
}

void *vgpu_resolve(unsigned name)
{
	void *p;

	if (!vgpu_has(name, &p))
		p = real.handle ? (void *)not_supported : (void *)no_driver;
	/* Relaxed: every thread stores the same value. */
	__atomic_store_n(&vgpu_real[name], p, __ATOMIC_RELAXED);
	return p;
}
