/* SPDX-License-Identifier: Apache-2.0 */
/* A library whose constructor launches. */
#include "test.h"

CUresult plugin_launch(void);

__attribute__((constructor)) static void launch_early(void)
{
	say("in the constructor");
	await();
	say("launch: %d", (int)plugin_launch());
}
