/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <unistd.h>

#include "tool.h"

/* Processes that have it mapped go on with what they mapped. */
int cmd_destroy(int argc, char **argv)
{
	static const char *const files[] = { "machine", "log" };
	char path[4096];

	if (argc != 1)
		return usage("destroy: a directory is needed");
	for (int i = 0; i < 2; i++) {
		snprintf(path, sizeof(path), "%s/%s", argv[0], files[i]);
		if (unlink(path) < 0 && errno != ENOENT)
			return fail("remove", path, errno);
	}
	if (rmdir(argv[0]) < 0 && errno != ENOENT)
		return fail("remove", argv[0], errno);
	return EXIT_OK;
}
