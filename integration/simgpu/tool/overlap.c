/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the log says about exclusion. An operation of class work is in flight
 * from its submission to its end. Swept in the order of time, O(n log n), exact:
 * at one instant what ends comes before what begins.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tool.h"

struct edge {
	uint64_t at_ns;
	uint32_t tenant; /* index */
	uint32_t gpu;
	bool begins;
};

struct tenant {
	uint64_t inode;
	uint64_t submissions, busy_ns;
	uint64_t in_flight, since_ns; /* while sweeping one GPU */
};

struct death {
	uint32_t proc;
	uint64_t at_ns;
};

struct result {
	uint64_t overlap_ns, pairs, busy_ns, submissions;
};

struct analysis {
	struct edge *edges;
	size_t n_edges;
	struct tenant *tenants;
	size_t n_tenants;
	struct death *deaths;
	size_t n_deaths;
	struct result gpu[SIM_MAX_GPUS];
	struct result all;
	uint64_t lost, open; /* open: neither ended nor dead, counted to now */
};

static void *must(void *p)
{
	if (!p) {
		fputs("simgpu: out of memory\n", stderr);
		exit(EXIT_FAIL);
	}
	return p;
}

/* Tenants are few (containers): a linear search, the last one found first. */
static uint32_t tenant_index(struct analysis *a, uint64_t inode)
{
	for (size_t i = a->n_tenants; i-- > 0;)
		if (a->tenants[i].inode == inode)
			return (uint32_t)i;
	a->tenants = must(realloc(a->tenants, (a->n_tenants + 1) * sizeof(*a->tenants)));
	a->tenants[a->n_tenants] = (struct tenant){ .inode = inode };
	return (uint32_t)a->n_tenants++;
}

static int by_proc(const void *x, const void *y)
{
	const struct death *a = x, *b = y;

	if (a->proc != b->proc)
		return a->proc < b->proc ? -1 : 1;
	return a->at_ns < b->at_ns ? -1 : a->at_ns > b->at_ns;
}

static int by_time(const void *x, const void *y)
{
	const struct edge *a = x, *b = y;

	if (a->gpu != b->gpu)
		return a->gpu < b->gpu ? -1 : 1;
	if (a->at_ns != b->at_ns)
		return a->at_ns < b->at_ns ? -1 : 1;
	return (int)a->begins - (int)b->begins;
}

static uint64_t death_of(const struct analysis *a, uint32_t proc)
{
	size_t lo = 0, hi = a->n_deaths;

	while (lo < hi) {
		size_t mid = (lo + hi) / 2;

		if (a->deaths[mid].proc < proc)
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo < a->n_deaths && a->deaths[lo].proc == proc ? a->deaths[lo].at_ns : 0;
}

static bool there(const struct sim_record *r)
{
	/* acquire: pairs with the writer's release */
	return atomic_load_explicit(&r->seq, memory_order_acquire) != 0;
}

static void collect(struct analysis *a, const struct sim_log *log)
{
	uint64_t now = clock_ns();
	uint64_t n = atomic_load(&log->next);

	if (n > log->capacity)
		n = log->capacity;
	a->lost = atomic_load(&log->lost);
	a->edges = must(malloc((2 * n + 1) * sizeof(*a->edges)));
	a->deaths = must(malloc((n + 1) * sizeof(*a->deaths)));
	for (uint64_t i = 0; i < n; i++) {
		const struct sim_record *r = &log->record[i];

		if (there(r) && r->class == SIM_SETUP && strcmp(r->name, "process-death") == 0)
			a->deaths[a->n_deaths++] = (struct death){ r->proc, r->submit_ns };
	}
	qsort(a->deaths, a->n_deaths, sizeof(*a->deaths), by_proc);
	for (uint64_t i = 0; i < n; i++) {
		const struct sim_record *r = &log->record[i];

		if (!there(r) || r->class != SIM_WORK || r->gpu >= SIM_MAX_GPUS)
			continue;
		uint32_t t = tenant_index(a, r->tenant);
		uint64_t from = r->submit_ns, to = r->end_ns;

		if (to == 0)
			to = death_of(a, r->proc);
		if (to == 0) {
			to = now;
			a->open++;
		}
		if (to <= from)
			to = from + 1; /* nothing is in flight for no time at all */
		a->edges[a->n_edges++] = (struct edge){ from, t, r->gpu, true };
		a->edges[a->n_edges++] = (struct edge){ to, t, r->gpu, false };
		a->tenants[t].submissions++;
		a->gpu[r->gpu].submissions++;
	}
	qsort(a->edges, a->n_edges, sizeof(*a->edges), by_time);
}

static void sweep(struct analysis *a)
{
	uint64_t in_flight = 0, active = 0; /* operations; tenants that have some */

	for (size_t i = 0; i < a->n_edges; i++) {
		struct edge *e = &a->edges[i];
		struct tenant *t = &a->tenants[e->tenant];
		struct result *g = &a->gpu[e->gpu];

		if (e->begins) {
			g->pairs += in_flight - t->in_flight;
			in_flight++;
			if (t->in_flight++ == 0) {
				active++;
				t->since_ns = e->at_ns;
			}
		} else {
			in_flight--;
			if (--t->in_flight == 0) {
				active--;
				t->busy_ns += e->at_ns - t->since_ns;
			}
		}
		/* Every edge has its end on the same GPU, so nothing is left over at the last. */
		if (i + 1 == a->n_edges || a->edges[i + 1].gpu != e->gpu)
			continue;
		uint64_t span = a->edges[i + 1].at_ns - e->at_ns;
		if (active > 0)
			g->busy_ns += span;
		if (active > 1)
			g->overlap_ns += span;
	}
	for (int i = 0; i < SIM_MAX_GPUS; i++) {
		a->all.overlap_ns += a->gpu[i].overlap_ns;
		a->all.pairs += a->gpu[i].pairs;
		a->all.busy_ns += a->gpu[i].busy_ns;
		a->all.submissions += a->gpu[i].submissions;
	}
}

#define U(x) ((unsigned long long)(x))

static void print_json(const struct analysis *a, uint32_t gpus)
{
	printf("{\"version\":1,\"overlap_ns\":%llu,\"pairs\":%llu,\"busy_ns\":%llu,\"submissions\":%llu,\"open\":%llu,\"lost\":%llu,\"gpus\":[",
	       U(a->all.overlap_ns), U(a->all.pairs), U(a->all.busy_ns), U(a->all.submissions), U(a->open), U(a->lost));
	for (uint32_t g = 0; g < gpus; g++)
		printf("%s{\"gpu\":%u,\"overlap_ns\":%llu,\"pairs\":%llu,\"busy_ns\":%llu,\"submissions\":%llu}", g ? "," : "", g,
		       U(a->gpu[g].overlap_ns), U(a->gpu[g].pairs), U(a->gpu[g].busy_ns), U(a->gpu[g].submissions));
	printf("],\"tenants\":[");
	for (size_t t = 0; t < a->n_tenants; t++)
		printf("%s{\"tenant\":%llu,\"busy_ns\":%llu,\"submissions\":%llu}", t ? "," : "", U(a->tenants[t].inode),
		       U(a->tenants[t].busy_ns), U(a->tenants[t].submissions));
	puts("]}");
}

static void print_text(const struct analysis *a, uint32_t gpus)
{
	printf("gpu\toverlap_ns\tpairs\tbusy_ns\tsubmissions\n");
	for (uint32_t g = 0; g < gpus; g++)
		printf("%u\t%llu\t%llu\t%llu\t%llu\n", g, U(a->gpu[g].overlap_ns), U(a->gpu[g].pairs),
		       U(a->gpu[g].busy_ns), U(a->gpu[g].submissions));
	printf("all\t%llu\t%llu\t%llu\t%llu\n\n", U(a->all.overlap_ns), U(a->all.pairs), U(a->all.busy_ns),
	       U(a->all.submissions));
	printf("tenant\tbusy_ns\tsubmissions\n");
	for (size_t t = 0; t < a->n_tenants; t++)
		printf("%llu\t%llu\t%llu\n", U(a->tenants[t].inode), U(a->tenants[t].busy_ns),
		       U(a->tenants[t].submissions));
	if (a->open)
		printf("\n%llu operations are still in flight: counted up to now\n", U(a->open));
	if (a->lost)
		printf("\nthe log was full: %llu records lost, the numbers are too small\n", U(a->lost));
}

int cmd_overlap(int argc, char **argv)
{
	const char *dir = NULL;
	bool json = false;

	for (int i = 0; i < argc; i++) {
		if (strcmp(argv[i], "--json") == 0)
			json = true;
		else if (argv[i][0] == '-' || dir)
			return usage("overlap: unknown option");
		else
			dir = argv[i];
	}
	if (!dir)
		return usage("overlap: a directory is needed");
	struct machine mc;
	if (open_machine(&mc, dir))
		return EXIT_FAIL;
	struct analysis a = { 0 };

	machine_bury_all(&mc);
	collect(&a, mc.log);
	sweep(&a);
	if (json)
		print_json(&a, mc.m->gpus);
	else
		print_text(&a, mc.m->gpus);
	free(a.edges);
	free(a.tenants);
	free(a.deaths);
	machine_close(&mc);
	return ferror(stdout) ? EXIT_FAIL : EXIT_OK;
}
