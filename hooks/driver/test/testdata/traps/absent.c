/* SPDX-License-Identifier: Apache-2.0 */
/* absent LIBRARY: our library where no container was made for it. */
#include "../test.h"

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	CHECK(!dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL));
	say("%s", dlerror());
	CHECK(!dlsym(RTLD_DEFAULT, "cuInit"));
	say("goes on");
	return 0;
}
