/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIMGPU_COPY_H
#define SIMGPU_COPY_H

#include "sim.h"

struct copy_mode {
	const char *name;
	bool async, per_thread;
};

CUresult copy_call(const struct copy *c, CUstream h, const struct copy_mode *m);
CUresult set_call(const struct set *s, CUstream h, const struct copy_mode *m);

#endif
