/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "tool.h"

static void print(const struct sim_record *r)
{
	printf("%llu\t%d\t%llu\t%u\t%u\t%llx\t%llx\t%s\t%.*s\t%llu\t%llu\t%llu\n",
	       (unsigned long long)(r->seq - 1), (int)r->gpu, (unsigned long long)r->tenant, r->pid, r->proc,
	       (unsigned long long)r->context, (unsigned long long)r->stream, class_name(r->class),
	       SIM_LOG_NAME, r->name, (unsigned long long)r->submit_ns, (unsigned long long)r->start_ns,
	       (unsigned long long)r->end_ns);
}

/* Records that were claimed and never written (their writer was killed) are left out. */
static uint64_t print_from(struct machine *mc, uint64_t i, bool follow)
{
	uint64_t n = atomic_load(&mc->log->next);

	if (n > mc->log->capacity)
		n = mc->log->capacity;
	for (; i < n; i++) {
		const struct sim_record *r = &mc->log->record[i];
		/* acquire: pairs with the writer's release */
		bool there = atomic_load_explicit(&r->seq, memory_order_acquire) != 0;

		if (there)
			print(r);
		else if (follow)
			break;
	}
	return i;
}

int cmd_log(int argc, char **argv)
{
	const char *dir = NULL;
	bool follow = false;

	for (int i = 0; i < argc; i++) {
		if (strcmp(argv[i], "--follow") == 0)
			follow = true;
		else if (argv[i][0] == '-' || dir)
			return usage("log: unknown option");
		else
			dir = argv[i];
	}
	if (!dir)
		return usage("log: a directory is needed");
	struct machine mc;
	if (open_machine(&mc, dir))
		return EXIT_FAIL;
	machine_bury_all(&mc);
	puts("seq\tgpu\ttenant\tpid\tproc\tcontext\tstream\tclass\tname\tsubmit_ns\tstart_ns\tend_ns");
	uint64_t i = print_from(&mc, 0, false);
	while (follow) {
		fflush(stdout);
		nanosleep(&(struct timespec){ .tv_nsec = 50000000 }, NULL);
		machine_bury_all(&mc);
		i = print_from(&mc, i, true);
	}
	uint64_t lost = atomic_load(&mc.log->lost);
	if (lost)
		fprintf(stderr, "simgpu: the log was full: %llu records lost\n", (unsigned long long)lost);
	machine_close(&mc);
	return ferror(stdout) ? EXIT_FAIL : EXIT_OK;
}
