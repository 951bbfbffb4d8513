/* SPDX-License-Identifier: Apache-2.0 */
/* No GPU is to be had. */
#include "test.h"

int main(void)
{
	unsigned n;
	nvmlDevice_t d;

	OK(nvmlInit_v2());
	OK(nvmlDeviceGetCount_v2(&n));
	say("count %u", n);
	say("%d %d", nvmlDeviceGetHandleByIndex_v2(0, &d), nvmlDeviceGetHandleByIndex_v2(0, &d));
	say("done");
	return 0;
}
