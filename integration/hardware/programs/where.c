/* SPDX-License-Identifier: Apache-2.0 */
/*
 * where NAME...: which file the dynamic linker takes for each, "FILE PATH", or
 * "missing NAME WHY". It runs nothing of theirs beyond their constructors.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
	for (int i = 1; i < argc; i++) {
		void *library = dlopen(argv[i], RTLD_LAZY | RTLD_LOCAL);
		char path[PATH_MAX];
		struct link_map *map;

		if (!library)
			printf("missing %s %s\n", argv[i], dlerror());
		else if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && realpath(map->l_name, path))
			printf("file %s %s\n", argv[i], path);
		else
			printf("missing %s it has no path\n", argv[i]);
	}
	return 0;
}
