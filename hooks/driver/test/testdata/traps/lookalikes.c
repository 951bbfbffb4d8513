/* SPDX-License-Identifier: Apache-2.0 */
/* lookalikes PLUGIN: a library whose names begin as the driver's, before cuInit and
 * after it, by each way to ask for a name. */
#include "lookalikes.h"
#include "trap.h"

static void *driver, *plugin;

static void look(const char *name)
{
	void *own = dlsym(plugin, name), *p = NULL;

	CHECK(own && dlsym(RTLD_DEFAULT, name) == own);
	CHECK(strcmp(((const char *(*)(void))own)(), name) == 0);
	CHECK(!dlsym(driver, name));
	CHECK(cuGetProcAddress_v2(name, &p, 13000, 0, NULL) != CUDA_SUCCESS || !p);
}

#define LOOK(name) look(#name);

int main(int argc, char **argv)
{
	CHECK(argc == 2);
	driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	plugin = dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL);
	CHECK(driver && plugin);
	LOOKALIKES(LOOK)
	begin();
	LOOKALIKES(LOOK)
	compute(1);
	say("each is its own library's");
	return 0;
}
