/* SPDX-License-Identifier: Apache-2.0 */
/* Built against a driver that is newer than any. */
#include "../../../cuda_abi.h"

CUresult cuNoSuchCall(void);
int version(void);
CUresult other(void);

int version(void)
{
	int v = 0;

	return cuDriverGetVersion(&v) == CUDA_SUCCESS && v > 0;
}

CUresult other(void)
{
	return cuNoSuchCall();
}
