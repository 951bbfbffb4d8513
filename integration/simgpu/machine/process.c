/* SPDX-License-Identifier: Apache-2.0 */
/* The table of processes: who is there, who died. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "machine.h"

/* Lock bytes lie behind the end of the file: nothing is ever read there. */
#define LOCK_BASE ((off_t)1 << 40)

static int lock_row(const struct machine *mc, int row, short type)
{
	struct flock fl = {
		.l_type = type, .l_whence = SEEK_SET, .l_start = LOCK_BASE + row, .l_len = 1,
	};

	return fcntl(mc->fd, F_OFD_SETLK, &fl) == 0 ? 0 : -errno;
}

bool machine_alive(const struct machine *mc, int row)
{
	struct flock fl = {
		.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = LOCK_BASE + row, .l_len = 1,
	};

	if (row == mc->row)
		return true;
	if (fcntl(mc->fd, F_OFD_GETLK, &fl) != 0)
		return true; /* can not tell: never bury the living */
	return fl.l_type != F_UNLCK;
}

uint64_t machine_tenant(void)
{
	struct stat st;

	/* Without /proc all such processes look like one tenant. */
	return stat("/proc/self/ns/mnt", &st) == 0 ? st.st_ino : 0;
}

static void clear_bit(_Atomic uint64_t *words, int row)
{
	atomic_fetch_and(&words[row / 64], ~(1ull << (row % 64)));
}

static void set_bit(_Atomic uint64_t *words, int row)
{
	atomic_fetch_or(&words[row / 64], 1ull << (row % 64));
}

/* What a dead process was reached by. */
static void remove_socket(const struct machine *mc, uint32_t id)
{
	char name[32];

	snprintf(name, sizeof(name), "ipc-%u", id);
	unlinkat(mc->dir, name, 0);
}

/* The caller holds the lock of the row, whose process is dead. */
static void bury_locked(struct machine *mc, int row)
{
	struct sim_proc *p = &mc->m->proc[row];
	uint32_t id = atomic_load(&p->id);

	if (id == 0)
		return;
	struct machine dead = *mc;
	dead.id = id;
	dead.pid = p->pid;
	dead.tenant = p->tenant;
	uint64_t now = clock_ns();
	uint64_t r = record_submit(&dead, &(struct submission){
		.gpu = SIM_NO_GPU, .class = SIM_SETUP, .name = "process-death" }, now);
	record_start(&dead, r, now);
	record_end(&dead, r, now);

	for (uint32_t g = 0; g < mc->m->gpus; g++) {
		struct sim_gpu *gpu = &mc->m->gpu[g];

		clear_bit(gpu->working, row);
		clear_bit(gpu->wanting, row);
		atomic_store(&p->used[g], 0);
		atomic_store(&p->managed[g], 0);
		atomic_store(&p->resident[g], 0);
		atomic_store(&p->contexts[g], 0);
		dead.row = row;
		turn_pass(&dead, g);
	}
	remove_socket(mc, id);
	atomic_store(&p->id, 0);
}

void machine_bury(struct machine *mc, int row)
{
	if (row == mc->row || atomic_load(&mc->m->proc[row].id) == 0)
		return;
	if (lock_row(mc, row, F_WRLCK) != 0)
		return; /* it lives, or another one buries it */
	bury_locked(mc, row);
	lock_row(mc, row, F_UNLCK);
}

void machine_bury_all(struct machine *mc)
{
	int rows = (int)atomic_load(&mc->m->rows);

	for (int row = 0; row < rows; row++)
		machine_bury(mc, row);
}

void machine_bury_workers(struct machine *mc, uint32_t gpu)
{
	struct sim_gpu *g = &mc->m->gpu[gpu];
	int words = ((int)atomic_load_explicit(&mc->m->rows, memory_order_relaxed) + 63) / 64;

	for (int w = 0; w < words; w++) {
		/* acquire: sees the submissions of whom it finds */
		uint64_t bits = atomic_load_explicit(&g->working[w], memory_order_acquire);

		if (mc->row / 64 == w)
			bits &= ~(1ull << (mc->row % 64));
		for (; bits; bits &= bits - 1) {
			int row = w * 64 + __builtin_ctzll(bits);

			if (!machine_alive(mc, row))
				machine_bury(mc, row);
		}
	}
}

void machine_working(struct machine *mc, uint32_t gpu, bool working)
{
	if (working)
		set_bit(mc->m->gpu[gpu].working, mc->row);
	else
		clear_bit(mc->m->gpu[gpu].working, mc->row);
}

static void raise_rows(struct machine *mc, uint32_t rows)
{
	uint32_t seen = atomic_load(&mc->m->rows);

	while (seen < rows && !atomic_compare_exchange_weak(&mc->m->rows, &seen, rows))
		;
}

int machine_join(struct machine *mc)
{
	machine_bury_all(mc);
	for (int row = 0; row < SIM_MAX_PROCS; row++) {
		struct sim_proc *p = &mc->m->proc[row];

		if (lock_row(mc, row, F_WRLCK) != 0)
			continue;
		bury_locked(mc, row);
		mc->row = row;
		mc->id = atomic_fetch_add(&mc->m->next_proc, 1) + 1;
		mc->pid = (uint32_t)getpid();
		mc->tenant = machine_tenant();
		p->pid = mc->pid;
		p->tenant = mc->tenant;
		prctl(PR_GET_NAME, p->name);
		pid_join(mc);
		raise_rows(mc, (uint32_t)row + 1);
		atomic_store(&p->id, mc->id);
		return 0;
	}
	return -EAGAIN;
}
