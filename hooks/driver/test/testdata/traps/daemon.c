/* SPDX-License-Identifier: Apache-2.0 */
/* Closes, as programs do that become daemons, all descriptors that it may have
 * got from anybody. Beside the fake driver, which has none of its own. */
#include "../test.h"

#include <sys/resource.h>

int main(void)
{
	struct rlimit few;
	CUcontext context;

	CHECK(getrlimit(RLIMIT_NOFILE, &few) == 0);
	few.rlim_cur = 1024;
	CHECK(setrlimit(RLIMIT_NOFILE, &few) == 0);
	OK(cuInit(0));
	OK(cuCtxCreate_v2(&context, 0, 0));
	CHECK(getrlimit(RLIMIT_NOFILE, &few) == 0 && few.rlim_cur == 1024);
	for (int fd = 3; fd < 1024; fd++)
		close(fd);
	say("closed");
	await();
	OK(launch(NULL));
	OK(cuStreamSynchronize(NULL));
	say("launched");
	await();
	OK(launch(NULL));
	say("launched again");
	return 0;
}
