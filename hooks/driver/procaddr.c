/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cuGetProcAddress: where nearly every program gets its functions. The real one
 * is asked first, with the same arguments; what it answers is then translated
 * by the address together with the name that was asked for (functions may share
 * an address). Where no exported name has that address, the version that was
 * asked for tells which of them it is.
 */
#include <string.h>

#include "driver.h"

_Atomic(void *) vgpu_found[VGPU_HOOKS];

struct vgpu_base_row {
	unsigned short name;
	unsigned short since;      /* the version from which on it is meant; 0: unknown */
};
struct vgpu_base {
	const char *name;
	unsigned short first, n;   /* in base_rows */
	unsigned flags;
};
#define VGPU_BASE_WORK    1u       /* it submits work */
#define VGPU_BASE_ONE_ABI 2u       /* all its versions take the same parameters */

#include "gen/bases.inc"

/* What passed that should not have, and what nobody knew; see vgpu_gate_stats. */
static _Atomic uint64_t unhooked, unknown;

static void count(_Atomic uint64_t *counter)
{
	atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
	if (atomic_load_explicit(&vgpu_active, memory_order_relaxed))
		vgpu_procaddr_report();
}

void vgpu_procaddr_report(void)
{
	uint64_t a = atomic_load_explicit(&unhooked, memory_order_relaxed);
	uint64_t b = atomic_load_explicit(&unknown, memory_order_relaxed);

	if (a || b)
		vgpu_gate_stats(a, b);
}

static const struct vgpu_base *find_base(const char *symbol)
{
	size_t low = 0, high = sizeof(bases) / sizeof(bases[0]);

	while (low < high) {
		size_t middle = (low + high) / 2;
		int c = strcmp(symbol, bases[middle].name);

		if (c == 0)
			return &bases[middle];
		if (c < 0)
			high = middle;
		else
			low = middle + 1;
	}
	return NULL;
}

static bool starts(const char *s, const char *with)
{
	return strncmp(s, with, strlen(with)) == 0;
}

/* A name of a later driver that, by its sound, submits work. */
static bool sounds_like_work(const char *symbol)
{
	return (starts(symbol, "cuLaunch") && !starts(symbol, "cuLaunchHost")) || starts(symbol, "cuGraphLaunch") ||
	       starts(symbol, "cuMemcpy") || starts(symbol, "cuMemset") || starts(symbol, "cuMemPrefetch");
}

static bool per_thread(const struct vgpu_name_row *row)
{
	return row->flags & VGPU_NAME_PER_THREAD;
}

/* Puts a hook over an address that no exported name has. */
static void *over(const struct vgpu_name_row *row, void *address)
{
	void *expected = NULL;

	/* Release: pairs with VGPU_FOUND. */
	if (atomic_compare_exchange_strong_explicit(&vgpu_found[row->hook], &expected, address, memory_order_acq_rel,
						    memory_order_acquire) ||
	    expected == address)
		return row->found;
	return NULL;
}

/* The names at this address, whatever they are called: how many there are, and the
 * hooked one, if it is the only one. (One stub may stand for all that is not
 * supported.) */
static unsigned by_address_alone(void *address, void **entry)
{
	unsigned n = 0;
	void *p;

	*entry = NULL;
	for (unsigned i = 0; i < VGPU_NAMES; i++) {
		if (!vgpu_has(i, &p) || p != address)
			continue;
		*entry = n++ == 0 && vgpu_names[i].hook >= 0 ? vgpu_names[i].entry : NULL;
	}
	return n;
}

/* What a name means to a program that was built for this version: the newest that
 * there was, of the flavour wanted if there is one. A version that is newer than
 * the table may mean what the table lacks. */
static const struct vgpu_name_row *of_version(const struct vgpu_base *base, int version, bool want)
{
	const struct vgpu_name_row *found = NULL;
	unsigned since = 0;

	if (version > CUDA_VERSION)
		return NULL;
	for (unsigned i = 0; i < base->n; i++) {
		const struct vgpu_base_row *r = &base_rows[base->first + i];
		const struct vgpu_name_row *row = &vgpu_names[r->name];
		bool fits = per_thread(row) == want, found_fits = found && per_thread(found) == want;

		if (r->since == 0 || (int)r->since > version)
			continue;
		if (!found || (fits && !found_fits) || (fits == found_fits && r->since > since)) {
			found = row;
			since = r->since;
		}
	}
	return found;
}

static void *translate(const char *symbol, void *address, int version, cuuint64_t flags)
{
	const struct vgpu_base *base;
	const struct vgpu_name_row *best = NULL, *any = NULL;
	bool want = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
	unsigned shared;
	void *p;

	if (vgpu_in_ours(address))
		return address; /* a real driver that binds its own names globally */
	base = find_base(symbol);
	if (!base) {
		by_address_alone(address, &p);
		if (p)
			return p;
		count(&unknown);
		if (sounds_like_work(symbol))
			count(&unhooked);
		return address;
	}
	for (unsigned i = 0; i < base->n; i++) {
		unsigned name = base_rows[base->first + i].name;
		const struct vgpu_name_row *row = &vgpu_names[name];

		if (row->hook >= 0 && (!any || per_thread(row) == want))
			any = row;
		if (!vgpu_has(name, &p) || p != address)
			continue;
		if (!best || per_thread(row) == want)
			best = row;
	}
	if (best)
		return best->entry; /* as dlsym would: the two are compared by some */
	if (!any)
		return address;
	/* The name is ours to watch, but the address is of no exported version. It may be
	 * that of another name, by which programs mean this one since some version. */
	shared = by_address_alone(address, &p);
	if (!p) {
		if (strcmp(symbol, "cuGetProcAddress") == 0)
			best = &vgpu_names[version >= 12000 ? VGPU_NAME_cuGetProcAddress_v2 : VGPU_NAME_cuGetProcAddress];
		else if (base->flags & VGPU_BASE_ONE_ABI)
			best = any;
		else if ((base->flags & VGPU_BASE_WORK) && shared == 0)
			best = of_version(base, version, want);
		if (best && best->hook >= 0)
			p = over(best, address);
	}
	count(p || !(base->flags & VGPU_BASE_WORK) ? &unknown : &unhooked);
	return p ? p : address;
}

static bool direct(const void *caller)
{
	return vgpu_thread.nested > 0 || vgpu_in_real(caller);
}

static void answer(CUresult r, const char *symbol, void **pfn, int version, cuuint64_t flags)
{
	if (r == CUDA_SUCCESS && symbol && pfn && *pfn)
		*pfn = translate(symbol, *pfn, version, flags);
}

CUresult vgpu_cuGetProcAddress(__typeof__(&cuGetProcAddress) real, const void *caller, const char *symbol, void **pfn,
			       int version, cuuint64_t flags)
{
	CUresult r;

	if (direct(caller))
		return real(symbol, pfn, version, flags);
	vgpu_thread.nested++;
	r = real(symbol, pfn, version, flags);
	answer(r, symbol, pfn, version, flags);
	vgpu_thread.nested--;
	return r;
}

CUresult vgpu_cuGetProcAddress_v2(__typeof__(&cuGetProcAddress_v2) real, const void *caller, const char *symbol, void **pfn,
				  int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
	CUresult r;

	if (direct(caller))
		return real(symbol, pfn, version, flags, status);
	vgpu_thread.nested++;
	r = real(symbol, pfn, version, flags, status);
	answer(r, symbol, pfn, version, flags);
	vgpu_thread.nested--;
	return r;
}

CUresult vgpu_cuGetProcAddress_v2_ptsz(__typeof__(&cuGetProcAddress_v2_ptsz) real, const void *caller, const char *symbol,
				       void **pfn, int version, cuuint64_t flags, CUdriverProcAddressQueryResult *status)
{
	void *p;

	if ((flags & (CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM)) == 0)
		flags |= CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
	if (!vgpu_has(VGPU_NAME_cuGetProcAddress_v2_ptsz, &p))
		real = VGPU_REAL(cuGetProcAddress_v2); /* an inline function in older headers */
	return vgpu_cuGetProcAddress_v2(real, caller, symbol, pfn, version, flags, status);
}
