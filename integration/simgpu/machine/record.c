/* SPDX-License-Identifier: Apache-2.0 */
/* Writing the log: see LOG.md. Any thread, any process, no lock. */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>

#include "machine.h"

uint64_t record_submit(struct machine *mc, const struct submission *s, uint64_t submit_ns)
{
	struct sim_log *log = mc->log;
	uint64_t i = SIM_NO_RECORD;

	/* A full log stays full: next must not run away and wrap some day. */
	if (atomic_load_explicit(&log->next, memory_order_relaxed) < log->capacity)
		i = atomic_fetch_add(&log->next, 1);
	if (i >= log->capacity) {
		atomic_fetch_add_explicit(&log->lost, 1, memory_order_relaxed);
		return SIM_NO_RECORD;
	}
	struct sim_record *r = &log->record[i];
	r->gpu = s->gpu;
	r->class = s->class;
	r->pid = mc->pid;
	r->proc = mc->id;
	r->tenant = mc->tenant;
	r->context = s->context;
	r->stream = s->stream;
	size_t n = strnlen(s->name, sizeof(r->name) - 1);
	memcpy(r->name, s->name, n);
	if (s->detail && n + 1 < sizeof(r->name)) {
		size_t d = strnlen(s->detail, sizeof(r->name) - n - 2);

		r->name[n] = ':';
		memcpy(r->name + n + 1, s->detail, d);
	}
	atomic_store_explicit(&r->submit_ns, submit_ns, memory_order_relaxed);
	/* release: who sees seq sees the rest */
	atomic_store_explicit(&r->seq, i + 1, memory_order_release);
	return i;
}

void record_start(struct machine *mc, uint64_t record, uint64_t ns)
{
	if (record != SIM_NO_RECORD)
		atomic_store_explicit(&mc->log->record[record].start_ns, ns, memory_order_release);
}

void record_end(struct machine *mc, uint64_t record, uint64_t ns)
{
	if (record != SIM_NO_RECORD)
		atomic_store_explicit(&mc->log->record[record].end_ns, ns, memory_order_release);
}
