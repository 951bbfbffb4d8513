/* SPDX-License-Identifier: Apache-2.0 */
/* Becomes a daemon in the old way: closes all descriptors up to the usual limit. */
#include <sys/resource.h>

#include "test.h"

int main(void)
{
	struct rlimit limit;
	nvmlMemory_t m;
	nvmlDevice_t d;

	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = 1024;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	OK(nvmlInit_v2());
	d = device(0);
	for (int fd = 3; fd < 1024; fd++)
		close(fd);
	OK(nvmlDeviceGetMemoryInfo(d, &m));
	CHECK(m.used == 1);
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur == 1024);
	say("done");
	return 0;
}
