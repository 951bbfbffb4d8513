/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIMGPU_TOOL_H
#define SIMGPU_TOOL_H

#include "../machine/machine.h"

/* Exit codes: 0 ok, 1 failure, 2 usage. */
enum { EXIT_OK = 0, EXIT_FAIL = 1, EXIT_USAGE = 2 };

int cmd_create(int argc, char **argv);
int cmd_log(int argc, char **argv);
int cmd_overlap(int argc, char **argv);
int cmd_inject(int argc, char **argv);
int cmd_destroy(int argc, char **argv);

int usage(const char *what);
int fail(const char *what, const char *on, int err);
/* "8589934592", "8Gi", "512Mi"; false if it does not parse. */
bool parse_size(const char *s, uint64_t *bytes);
bool parse_number(const char *s, uint64_t max, uint64_t *n);
/* Opens the machine or says why not. */
int open_machine(struct machine *mc, const char *dir);

const char *class_name(uint32_t class);

#endif
