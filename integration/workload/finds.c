/* SPDX-License-Identifier: Apache-2.0 */
/*
 * finds: loads libraries by their names, as programs and the parts of a driver do,
 * says where each came from, and becomes another program.
 *
 *   finds [--user UID GID,GID...] NAME... [-- PROGRAM [ARGS...]]
 *
 * With --user it becomes that user first, whose groups are all of these. Ends with
 * status 1 if a library is not found.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <grp.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void become(const char *user, char *groups)
{
	gid_t all[32];
	size_t n = 0;

	for (char *g = strtok(groups, ","); g && n < sizeof(all) / sizeof(*all); g = strtok(NULL, ","))
		all[n++] = (gid_t)strtoul(g, NULL, 10);
	if (!n || setgroups(n, all) || setgid(all[0]) || setuid((uid_t)strtoul(user, NULL, 10))) {
		perror("finds: become another user");
		exit(1);
	}
}

int main(int argc, char **argv)
{
	int i = 1, missing = 0;

	if (argc > 3 && !strcmp(argv[1], "--user")) {
		become(argv[2], argv[3]);
		i = 4;
	}
	for (; i < argc && strcmp(argv[i], "--"); i++) {
		struct link_map *map;
		void *library = dlopen(argv[i], RTLD_LAZY | RTLD_LOCAL);

		if (!library || dlinfo(library, RTLD_DI_LINKMAP, &map)) {
			printf("%s: %s\n", argv[i], dlerror());
			missing = 1;
			continue;
		}
		printf("%s %s\n", argv[i], map->l_name);
	}
	fflush(stdout);
	if (missing || i + 1 >= argc)
		return missing;
	execv(argv[i + 1], argv + i + 1);
	fprintf(stderr, "finds: %s: %s\n", argv[i + 1], strerror(errno));
	return 1;
}
