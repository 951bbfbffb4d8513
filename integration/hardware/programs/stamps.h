/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log that the kernel "stamp" (../../kernels/stamp.ptx) writes: when each piece
 * of work began and ended on the GPU, by the GPU's own clock.
 */
#ifndef VGPU_HARDWARE_STAMPS_H
#define VGPU_HARDWARE_STAMPS_H

#include "common.h"

struct stamps {
	CUfunction kernel;
	CUdeviceptr log;
	uint32_t capacity;
};

struct stamps stamps_open(CUfunction kernel, uint32_t capacity);

/* Queues work of so many loops that is stamped. */
void stamps_launch(const struct stamps *s, uint32_t loops, CUstream stream);

/* How many loops last a microsecond on this GPU, if nobody else uses it. */
uint64_t stamps_loops_per_us(CUfunction kernel);

/* Prints "clock GPU CPU ERROR": an instant of the GPU's clock and the same one of
 * CLOCK_MONOTONIC, and how far off that may be, in ns. */
void stamps_say_clock(CUfunction kernel);

/* Prints "span BEGIN END" for each, and "lost N" for those that did not fit. */
void stamps_say_all(const struct stamps *s);

/* Prints a line, and waits for one on stdin: the end of stdin counts too. */
void say_and_await(const char *line);

#endif
