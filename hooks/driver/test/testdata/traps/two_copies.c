/* SPDX-License-Identifier: Apache-2.0 */
/* A copy of the driver's file is loaded beside the driver, by its path, as from
 * an environment that somebody packed up in a container. */
#include "loads.h"

#include <fcntl.h>
#include <sys/sendfile.h>
#include <sys/stat.h>

int main(void)
{
	void *first = must_load("libcuda.so.1", RTLD_NOW), *second;
	char name[] = "/tmp/vgpu-copy.XXXXXX";
	struct link_map *map;
	struct stat st;
	int from, to;

	CHECK(dlinfo(first, RTLD_DI_LINKMAP, &map) == 0);
	from = open(map->l_name, O_RDONLY);
	to = mkstemp(name);
	CHECK(from >= 0 && to >= 0 && fstat(from, &st) == 0);
	CHECK(sendfile(to, from, NULL, (size_t)st.st_size) == st.st_size);
	second = must_load(name, RTLD_NOW);
	CHECK(unlink(name) == 0);
	CHECK(dlsym(first, "cuInit") != dlsym(second, "cuInit"));
	compute_with(first);
	compute_with(second);
	compute_with(first);
	say("both compute");
	return 0;
}
