/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tool.h"

/* What processes that died have left, and nobody has buried. */
static void remove_sockets(const char *dir)
{
	DIR *d = opendir(dir);

	for (struct dirent *e; d && (e = readdir(d));)
		if (strncmp(e->d_name, "ipc-", 4) == 0)
			unlinkat(dirfd(d), e->d_name, 0);
	if (d)
		closedir(d);
}

/* Processes that have it mapped go on with what they mapped. */
int cmd_destroy(int argc, char **argv)
{
	static const char *const files[] = { "machine", "log", "pids" };
	char path[4096];

	if (argc != 1)
		return usage("destroy: a directory is needed");
	for (int i = 0; i < 3; i++) {
		snprintf(path, sizeof(path), "%s/%s", argv[0], files[i]);
		if (unlink(path) < 0 && errno != ENOENT)
			return fail("remove", path, errno);
	}
	remove_sockets(argv[0]);
	if (rmdir(argv[0]) < 0 && errno != ENOENT)
		return fail("remove", argv[0], errno);
	return EXIT_OK;
}
