/* SPDX-License-Identifier: Apache-2.0 */
/* A program that runs as another user than the one who started it: the dynamic
 * loader trusts nothing of its environment. */
#include <sys/auxv.h>

#include "trap.h"

int main(void)
{
	say("secure: %lu, user %s", getauxval(AT_SECURE), geteuid() == getuid() ? "the same" : "another");
	begin();
	compute(3);
	say("computes");
	return 0;
}
