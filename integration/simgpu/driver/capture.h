/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIMGPU_CAPTURE_H
#define SIMGPU_CAPTURE_H

#include "sim.h"

/* Ends a capture, whose graph is somebody else's from here on. */
void capture_end_locked(struct capture *c);
bool capture_tail_locked(struct stream *s, struct node *const *nodes, uint32_t n, bool add);

#endif
