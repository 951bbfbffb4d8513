/* SPDX-License-Identifier: Apache-2.0 */
/* simgpu: makes simulated machines and reads what they logged. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tool.h"

static const char help[] =
	"usage:\n"
	"  simgpu create --gpus N [--memory SIZE] [--model NAME] [--context-memory SIZE]\n"
	"                [--switch-us N] [--slice-us N] [--swap-rate BYTES] [--log-records N] DIR\n"
	"  simgpu log DIR [--follow]       the log as tab-separated values\n"
	"  simgpu overlap DIR [--json]     how long work of several tenants was in flight at once\n"
	"  simgpu inject DIR --gpu N ...   what the GPU suffers from now on, until it is changed or --clear:\n"
	"                [--xid X] [--double-bit]       once each: what NVML tells as an event\n"
	"                [--lost on|off] [--compute-mode default|exclusive|prohibited] [--mig on|off]\n"
	"                [--mps off|client|server] [--recovery none|reset|reboot|drain-p2p|drain-reset]\n"
	"                [--remap-pending on|off] [--remap-failed on|off] [--retirement-pending on|off]\n"
	"                [--clocks BITS] [--foreign SIZE] [--no-events on|off] [--hang on|off] [--clear]\n"
	"                [--oom-at N] [--slow CALL:US]\n"
	"  simgpu destroy DIR\n";

int usage(const char *what)
{
	if (what)
		fprintf(stderr, "simgpu: %s\n", what);
	fputs(help, stderr);
	return EXIT_USAGE;
}

int fail(const char *what, const char *on, int err)
{
	fprintf(stderr, "simgpu: failed to %s %s: %s\n", what, on, strerror(err));
	return EXIT_FAIL;
}

bool parse_number(const char *s, uint64_t max, uint64_t *n)
{
	char *end;

	if (*s < '0' || *s > '9')
		return false;
	*n = strtoull(s, &end, 10);
	return *end == 0 && *n <= max;
}

bool parse_size(const char *s, uint64_t *bytes)
{
	static const struct {
		const char *suffix;
		int shift;
	} unit[] = { { "", 0 }, { "Ki", 10 }, { "Mi", 20 }, { "Gi", 30 }, { "Ti", 40 } };
	char *end;

	if (*s < '0' || *s > '9')
		return false;
	*bytes = strtoull(s, &end, 10);
	for (size_t i = 0; i < sizeof(unit) / sizeof(unit[0]); i++)
		if (strcmp(end, unit[i].suffix) == 0 && *bytes <= UINT64_MAX >> 1 >> unit[i].shift) {
			*bytes <<= unit[i].shift;
			return true;
		}
	return false;
}

int open_machine(struct machine *mc, const char *dir)
{
	int err = machine_open(mc, dir);

	if (err == -EPROTO) {
		fprintf(stderr, "simgpu: %s is no machine of this version; make one with: simgpu create --gpus 1 %s\n", dir, dir);
		return EXIT_FAIL;
	}
	return err ? fail("open the machine in", dir, -err) : EXIT_OK;
}

const char *class_name(uint32_t class)
{
	static const char *const names[] = { "work", "order", "setup" };

	return class < 3 ? names[class] : "?";
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int (*run)(int, char **);
	} cmds[] = {
		{ "create", cmd_create }, { "log", cmd_log }, { "overlap", cmd_overlap },
		{ "inject", cmd_inject }, { "destroy", cmd_destroy },
	};

	if (argc < 2)
		return usage(NULL);
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
		fputs(help, stdout);
		return EXIT_OK;
	}
	for (size_t i = 0; i < sizeof(cmds) / sizeof(cmds[0]); i++)
		if (strcmp(argv[1], cmds[i].name) == 0)
			return cmds[i].run(argc - 2, argv + 2);
	return usage("unknown command");
}
