/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What CUDA's toolkit has in lib64/stubs: a libcuda.so.1 to link against, whose
 * functions do nothing but say so. NAMES is a list of DRIVER(name), which the
 * Makefile makes of what the programs use.
 */
#define CUDA_ERROR_STUB_LIBRARY 34
#define DRIVER(name)                                                                                                   \
	int name(void);                                                                                                \
	int name(void) { return CUDA_ERROR_STUB_LIBRARY; }

#include NAMES
