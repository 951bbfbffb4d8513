/* SPDX-License-Identifier: Apache-2.0 */
/* plain_memory: what was allocated on the device is there, and not managed. */
#include "trap.h"

static void look(const char *what, CUdeviceptr p)
{
	CUmemorytype type = 0;
	int managed = -1;

	OK(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, p));
	OK(cuPointerGetAttribute(&managed, CU_POINTER_ATTRIBUTE_IS_MANAGED, p));
	say("%s: type %d, managed %d", what, (int)type, managed);
}

int main(void)
{
	CUdeviceptr p;
	size_t pitch;

	begin();
	OK(cuMemAlloc(&p, 1 << 20));
	look("plain", p);
	OK(cuMemAllocPitch(&p, &pitch, 100, 100, 4));
	look("pitched", p);
	OK(cuMemAllocAsync(&p, 1 << 20, NULL));
	OK(cuStreamSynchronize(NULL));
	look("of a pool", p);
	OK(cuMemAllocManaged(&p, 1 << 20, CU_MEM_ATTACH_GLOBAL));
	look("managed", p);
	return 0;
}
