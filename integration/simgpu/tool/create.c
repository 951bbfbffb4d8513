/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/random.h>
#include <unistd.h>

#include "tool.h"

#define DEFAULT_MEMORY (16ull << 30)
#define DEFAULT_RECORDS (1ull << 20)
#define DEFAULT_SLICE_US 2000
#define DEFAULT_SWITCH_US 100
#define LARGEST_CONTEXT (256ull << 20)

struct settings {
	uint64_t gpus, memory, context, slice_us, switch_us, swap_rate, records;
	bool context_given;
	const char *model, *dir;
};

/* Makes DIR/NAME of that size, all zero, and maps it if map is not NULL. Refuses to overwrite. */
static int make_file(const char *dir, const char *name, size_t size, void **map)
{
	char path[4096];
	int fd, err = 0;

	if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, name) >= sizeof(path))
		return ENAMETOOLONG;
	fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (fd < 0)
		return errno;
	/* fchmod: any user of any container maps it, whatever our umask is */
	if (ftruncate(fd, (off_t)size) < 0 || fchmod(fd, 0666) < 0)
		err = errno;
	if (!err && map) {
		*map = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		if (*map == MAP_FAILED)
			err = errno;
	}
	close(fd);
	return err;
}

static void fill_machine(struct sim_machine *m, const struct settings *s)
{
	m->gpus = (uint32_t)s->gpus;
	m->memory = s->memory;
	m->context = s->context;
	m->slice_ns = s->slice_us * 1000;
	m->switch_ns = s->switch_us * 1000;
	m->swap_rate = s->swap_rate;
	snprintf(m->model, sizeof(m->model), "%s", s->model);
	m->version = SIM_MACHINE_VERSION;
	for (uint32_t g = 0; g < m->gpus; g++) {
		if (getrandom(m->gpu[g].uuid, 16, 0) != 16)
			memset(m->gpu[g].uuid, (int)g + 1, 16);
		/* a version 4 UUID, as tools may check */
		m->gpu[g].uuid[6] = (uint8_t)((m->gpu[g].uuid[6] & 0x0f) | 0x40);
		m->gpu[g].uuid[8] = (uint8_t)((m->gpu[g].uuid[8] & 0x3f) | 0x80);
		m->gpu[g].pci_bus = 0x10 + g * 4;
	}
	/* release: who sees the magic sees the rest */
	atomic_store_explicit(&m->magic, SIM_MACHINE_MAGIC, memory_order_release);
}

static int create(const struct settings *s)
{
	void *map;
	int err;

	if (mkdir(s->dir, 0777) < 0 && errno != EEXIST)
		return fail("make", s->dir, errno);
	if (chmod(s->dir, 0777) < 0)
		return fail("open to all users", s->dir, errno);
	err = make_file(s->dir, "log", sizeof(struct sim_log) + s->records * sizeof(struct sim_record), &map);
	if (err)
		return fail("make the log in", s->dir, err);
	struct sim_log *log = map;
	log->version = SIM_LOG_VERSION;
	log->record_size = sizeof(struct sim_record);
	log->capacity = s->records;
	log->magic = SIM_LOG_MAGIC;
	err = make_file(s->dir, "pids", 0, NULL);
	if (err)
		return fail("make the file of pids in", s->dir, err);
	err = make_file(s->dir, "machine", sizeof(struct sim_machine), &map);
	if (err)
		return fail("make the machine in", s->dir, err);
	fill_machine(map, s);
	return EXIT_OK;
}

int cmd_create(int argc, char **argv)
{
	struct settings s = {
		.memory = DEFAULT_MEMORY, .slice_us = DEFAULT_SLICE_US, .switch_us = DEFAULT_SWITCH_US,
		.records = DEFAULT_RECORDS, .model = "Simulated GPU",
	};

	for (int i = 0; i < argc; i++) {
		const char *a = argv[i];
		const char *v = i + 1 < argc ? argv[i + 1] : "";
		bool ok = true;

		if (a[0] != '-') {
			if (s.dir)
				return usage("create: one directory");
			s.dir = a;
			continue;
		}
		if (strcmp(a, "--gpus") == 0)
			ok = parse_number(v, SIM_MAX_GPUS, &s.gpus);
		else if (strcmp(a, "--memory") == 0)
			ok = parse_size(v, &s.memory) && s.memory > 0 && s.memory <= 1ull << 42;
		else if (strcmp(a, "--context-memory") == 0)
			ok = s.context_given = parse_size(v, &s.context);
		else if (strcmp(a, "--model") == 0)
			s.model = v, ok = *v && strlen(v) < sizeof(((struct sim_machine *)0)->model);
		else if (strcmp(a, "--switch-us") == 0)
			ok = parse_number(v, 1000000, &s.switch_us);
		else if (strcmp(a, "--slice-us") == 0)
			ok = parse_number(v, 1000000, &s.slice_us) && s.slice_us > 0;
		else if (strcmp(a, "--swap-rate") == 0)
			ok = parse_size(v, &s.swap_rate) && s.swap_rate > 0;
		else if (strcmp(a, "--log-records") == 0)
			ok = parse_number(v, 1ull << 28, &s.records) && s.records > 0;
		else
			return usage("create: unknown option");
		if (!ok) {
			fprintf(stderr, "simgpu: create: bad value '%s' for %s\n", v, a);
			return usage(NULL);
		}
		i++;
	}
	if (!s.dir || s.gpus == 0)
		return usage("create: --gpus (1 to 16) and a directory are needed");
	if (!s.context_given)
		s.context = s.memory / 64 < LARGEST_CONTEXT ? s.memory / 64 : LARGEST_CONTEXT;
	return create(&s);
}
