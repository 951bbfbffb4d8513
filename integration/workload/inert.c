/* SPDX-License-Identifier: Apache-2.0 */
/*
 * inert: is linked with the driver library and calls it only if it is given
 * --init. Prints "loaded" and sleeps until it is killed.
 */
#include "common.h"

#include <stdio.h>
#include <unistd.h>

int main(int argc, char **argv)
{
	if (option_set(argc, argv, "--init"))
		CU(cuInit(0));
	printf("loaded\n");
	fflush(stdout);
	for (;;)
		pause();
}
