/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <linux/memfd.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "shared.h"

#define MAGIC 0x4552414853ull /* "SHARE" */
#define PAGE 4096

int shared_new(const struct shared_head *head)
{
	struct shared_head h = *head;
	/* Not through libc: an old one has no memfd_create. */
	int fd = (int)syscall(SYS_memfd_create, "simgpu", MFD_CLOEXEC);

	if (fd < 0)
		return -1;
	h.magic = MAGIC;
	if (ftruncate(fd, (off_t)(h.size + PAGE)) < 0 || pwrite(fd, &h, sizeof(h), (off_t)h.size) != sizeof(h)) {
		close(fd);
		return -1;
	}
	return fd;
}

bool shared_read(int fd, struct shared_head *head)
{
	struct stat st;

	if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size < PAGE)
		return false;
	return pread(fd, head, sizeof(*head), st.st_size - PAGE) == sizeof(*head) && head->magic == MAGIC &&
	       head->size == (uint64_t)st.st_size - PAGE;
}
