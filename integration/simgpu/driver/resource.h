/* SPDX-License-Identifier: Apache-2.0 */
#ifndef SIMGPU_RESOURCE_H
#define SIMGPU_RESOURCE_H

#include "sim.h"

#define SMS 108 /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT */

/* What a description of resources comes to: multiprocessors of one device. */
struct resources {
	struct handle h;
	CUdevice device;
	CUdevResource sm;
};

CUdevResource resource_of_device(CUdevice dev);

#endif
