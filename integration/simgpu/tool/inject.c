/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <string.h>

#include "tool.h"

int cmd_inject(int argc, char **argv)
{
	const char *dir = NULL;
	uint64_t gpu = 0, xid = 0;

	for (int i = 0; i < argc; i++) {
		const char *v = i + 1 < argc ? argv[i + 1] : "";

		if (strcmp(argv[i], "--gpu") == 0) {
			if (!parse_number(v, SIM_MAX_GPUS - 1, &gpu))
				return usage("inject: --gpu is a number");
			i++;
		} else if (strcmp(argv[i], "--xid") == 0) {
			if (!parse_number(v, 100000, &xid) || xid == 0)
				return usage("inject: --xid is a number");
			i++;
		} else if (argv[i][0] == '-' || dir) {
			return usage("inject: unknown option");
		} else {
			dir = argv[i];
		}
	}
	if (!dir || xid == 0)
		return usage("inject: a directory and --xid are needed");
	struct machine mc;
	if (open_machine(&mc, dir))
		return EXIT_FAIL;
	if (gpu >= mc.m->gpus)
		return usage("inject: no such GPU");
	machine_xid(&mc, (uint32_t)gpu, xid);
	machine_close(&mc);
	return EXIT_OK;
}
