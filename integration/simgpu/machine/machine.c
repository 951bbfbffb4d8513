/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "machine.h"

const char *machine_dir(void)
{
	const char *dir = getenv("SIMGPU_MACHINE");

	return dir && *dir ? dir : "/dev/simgpu";
}

static int open_file(const char *dir, const char *name)
{
	char path[4096];
	int fd;

	if ((size_t)snprintf(path, sizeof(path), "%s/%s", dir, name) >= sizeof(path))
		return -ENAMETOOLONG;
	fd = open(path, O_RDWR | O_CLOEXEC | O_NOCTTY);
	return fd < 0 ? -errno : fd;
}

static int map_file(const char *dir, const char *name, size_t least, void **out, size_t *size)
{
	struct stat st;
	int fd = open_file(dir, name), err = 0;

	if (fd < 0)
		return fd;
	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || (size_t)st.st_size < least) {
		close(fd);
		return -EPROTO;
	}
	*out = mmap(NULL, (size_t)st.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (*out == MAP_FAILED)
		err = -errno;
	*size = (size_t)st.st_size;
	close(fd);
	return err;
}

static bool log_ok(const struct sim_log *log, size_t size)
{
	return log->magic == SIM_LOG_MAGIC && log->version == SIM_LOG_VERSION &&
	       log->capacity <= (size - sizeof(*log)) / sizeof(log->record[0]);
}

int machine_open(struct machine *mc, const char *dir)
{
	void *map = NULL;
	size_t size;
	int err;

	memset(mc, 0, sizeof(*mc));
	mc->row = -1;
	mc->fd = -1;
	mc->dir = open(dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (mc->dir < 0)
		return -errno;
	/*
	 * Opened apart from the mapping: a mapping keeps the description that it was
	 * made from, and a forked child would inherit our lock with it.
	 */
	mc->fd = open_file(dir, "machine");
	if (mc->fd < 0) {
		err = mc->fd;
		machine_close(mc);
		return err;
	}
	err = map_file(dir, "machine", sizeof(*mc->m), &map, &size);
	if (!err) {
		mc->m = map;
		err = map_file(dir, "log", sizeof(*mc->log), &map, &size);
	}
	if (err) {
		machine_close(mc);
		return err;
	}
	mc->log = map;
	mc->log_size = size;
	/* acquire: pairs with the release of who made it */
	if (atomic_load_explicit(&mc->m->magic, memory_order_acquire) != SIM_MACHINE_MAGIC ||
	    mc->m->version != SIM_MACHINE_VERSION || mc->m->gpus > SIM_MAX_GPUS || !log_ok(mc->log, size)) {
		machine_close(mc);
		return -EPROTO;
	}
	return 0;
}

void machine_close(struct machine *mc)
{
	if (mc->log)
		munmap(mc->log, mc->log_size);
	if (mc->m)
		munmap(mc->m, sizeof(*mc->m));
	if (mc->fd >= 0)
		close(mc->fd);
	if (mc->dir >= 0)
		close(mc->dir);
	mc->log = NULL;
	mc->m = NULL;
	mc->fd = -1;
	mc->dir = -1;
	mc->row = -1;
}

void machine_changed(struct machine *mc)
{
	atomic_fetch_add(&mc->m->changes, 1);
	sim_futex_wake(&mc->m->changes, UINT32_MAX);
}

void machine_event(struct machine *mc, uint32_t gpu, uint32_t type, uint64_t data)
{
	struct sim_gpu *g = &mc->m->gpu[gpu];
	uint32_t n = atomic_fetch_add(&g->events, 1);
	struct sim_event *e = &g->event[n % SIM_EVENTS];

	atomic_store(&e->number, 0);
	atomic_store(&e->type, type);
	atomic_store(&e->data, data);
	atomic_store(&e->number, n + 1);
	machine_changed(mc);
}
