/* SPDX-License-Identifier: Apache-2.0 */
/* Linked, elsewhere, with a newer driver: a name that we have never heard of. */
#include "test.h"

CUresult cuBrandNew(int x);

int main(void)
{
	CHECK(cuBrandNew(1) == (CUresult)1001);
	OK(cuInit(0));
	say("done");
	return 0;
}
