/* SPDX-License-Identifier: Apache-2.0 */
/* chrooted DIR: where cuInit is called, the container's directory is not there. */
#include "../test.h"

int main(int argc, char **argv)
{
	CUresult first;
	int version = 0;

	CHECK(argc == 2);
	OK(cuDriverGetVersion(&version));
	CHECK(chroot(argv[1]) == 0 && chdir("/") == 0);
	first = cuInit(0);
	say("cuInit: %d, again: %d, launch: %d", (int)first, (int)cuInit(0), (int)launch(NULL));
	OK(cuDriverGetVersion(&version));
	CHECK(version == 13000);
	say("done");
	return 0;
}
