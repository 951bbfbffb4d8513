/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the CUDA programs of the demo and the tests share. They use the driver
 * API alone and know nothing of vgpu: the same files run on any driver.
 */
#ifndef VGPU_WORKLOAD_COMMON_H
#define VGPU_WORKLOAD_COMMON_H

#include <stdint.h>

#include "cuda_abi.h"

/* Ends the program with a message if a driver call fails. */
#define CU(call) cu_check((call), #call, __FILE__, __LINE__)
void cu_check(CUresult result, const char *call, const char *file, int line);

/* Prints a message and ends the program with status 1. */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The value of an option --name VALUE, or the default. */
uint64_t option_u64(int argc, char **argv, const char *name, uint64_t otherwise);
const char *option_text(int argc, char **argv, const char *name, const char *otherwise);
int option_set(int argc, char **argv, const char *name);

/* CLOCK_MONOTONIC, in ns: the clock of the simulated GPU's log. */
uint64_t now_ns(void);

/* Takes device 0 with its primary context. */
void open_device(void);

/* Loads a kernel from NAME.ptx in the directory of --kernels. */
CUfunction load_kernel(int argc, char **argv, const char *name);

/* Queues one kernel that keeps the GPU busy for so long. */
void launch_spin(CUfunction spin, uint32_t us, CUstream stream);

#endif
