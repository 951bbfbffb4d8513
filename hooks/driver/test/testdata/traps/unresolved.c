/* SPDX-License-Identifier: Apache-2.0 */
/* unresolved PLUGIN: a library that wants a name which no driver has. */
#include "loads.h"

int main(int argc, char **argv)
{
	void *plugin;

	CHECK(argc > 1);
	plugin = dlopen(argv[1], RTLD_NOW);
	say("now: %s", plugin ? "loaded" : strstr(dlerror(), "cuNoSuchCall") ? "cuNoSuchCall is missing" : "something else");
	plugin = must_load(argv[1], RTLD_LAZY);
	say("lazy: %d", ((int (*)(void))dlsym(plugin, "version"))());
	return 0;
}
