/* SPDX-License-Identifier: Apache-2.0 */
/*
 * adds [LIBRARY [deep]]: adds vectors with the driver that dlopen finds under that
 * name (deep: RTLD_DEEPBIND), or that the program is linked with. Prints one line
 * of JSON at the end.
 */
#define _GNU_SOURCE
#include "adder.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#ifndef RTLD_DEEPBIND
#define RTLD_DEEPBIND 0 /* musl has none */
#endif

int main(int argc, char **argv)
{
	int deep = argc > 2 && strcmp(argv[2], "deep") == 0;
	struct adder *a;

	if (adder_open(argc > 1 ? argv[1] : NULL, deep ? RTLD_DEEPBIND : 0) || !(a = adder_new()) || adder_run(a))
		return 1;
	printf("{\"ok\":true,\"uid\":%u}\n", (unsigned)geteuid());
	return 0;
}
