/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pids across pid namespaces. A POSIX lock, unlike an OFD lock, tells who holds
 * it: the kernel gives the holder's pid as the one who asks would number it, or 0
 * if that one can not see the holder. So each process locks the byte of its row.
 *
 * A process loses its POSIX locks on a file when it closes any descriptor of it.
 * Hence a file of its own, which is opened once and never closed: also not by an
 * NVML in the same process, which is another copy of this code.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include "machine.h"

static struct {
	pthread_mutex_t lock;
	int fd; /* 0: none */
	dev_t dev;
	ino_t ino;
} pids = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Another machine's file stays open too: few processes ever see two. */
static int pids_file(const struct machine *mc)
{
	struct stat st;
	int fd = -1;

	pthread_mutex_lock(&pids.lock);
	if (fstatat(mc->dir, "pids", &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode)) {
		if (!pids.fd || pids.dev != st.st_dev || pids.ino != st.st_ino) {
			pids.fd = openat(mc->dir, "pids", O_RDWR | O_CLOEXEC | O_NOCTTY | O_NOFOLLOW);
			pids.dev = st.st_dev;
			pids.ino = st.st_ino;
		}
		fd = pids.fd;
	}
	pthread_mutex_unlock(&pids.lock);
	return fd;
}

static struct flock row_lock(int row)
{
	return (struct flock){ .l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = row, .l_len = 1 };
}

void pid_join(struct machine *mc)
{
	struct flock fl = row_lock(mc->row);
	int fd = pids_file(mc);

	if (fd >= 0)
		fcntl(fd, F_SETLK, &fl);
}

uint32_t pid_of(const struct machine *mc, int row)
{
	struct flock fl = row_lock(row);
	int fd = pids_file(mc);

	if (fd < 0 || fcntl(fd, F_GETLK, &fl) != 0)
		return mc->m->proc[row].pid; /* the machine has no such file */
	if (fl.l_type == F_UNLCK) /* it is this process, or one whose child has the row */
		return mc->m->proc[row].tenant == machine_tenant() ? mc->m->proc[row].pid : 0;
	return fl.l_pid > 0 ? (uint32_t)fl.l_pid : 0;
}
