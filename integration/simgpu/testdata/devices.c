/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the result of cuInit, then UUID, bus id and name of each visible device. */
#include "test.h"

int main(void)
{
	CUresult r = cuInit(0);
	int n;

	printf("%d\n", r);
	if (r)
		return 0;
	OK(cuDeviceGetCount(&n));
	for (int i = 0; i < n; i++) {
		char name[100], bus[32];
		CUuuid u;

		OK(cuDeviceGetUuid(&u, i));
		OK(cuDeviceGetName(name, sizeof(name), i));
		OK(cuDeviceGetPCIBusId(bus, sizeof(bus), i));
		for (int b = 0; b < 16; b++)
			printf("%s%02x", b == 4 || b == 6 || b == 8 || b == 10 ? "-" : "", (unsigned char)u.bytes[b]);
		printf(" %s %s\n", bus, name);
	}
	return 0;
}
