/* SPDX-License-Identifier: Apache-2.0 */
/* A library has a module in each of two contexts, and goes while the first is current. */
#include "bound.h"

static void look(CUcontext c)
{
	size_t free, total;

	OK(cuCtxSetCurrent(c));
	OK(cuMemGetInfo(&free, &total));
}

int main(int argc, char **argv)
{
	CUcontext c[2];
	CUlibrary library;
	CUmodule m;
	CUdevice d;
	char path[4096];

	CHECK(argc > 1);
	snprintf(path, sizeof(path), "%s/spin_us.ptx", argv[1]);
	OK(cuInit(0));
	ready();
	for (int i = 0; i < 2; i++) {
		OK(cuDeviceGet(&d, i));
		OK(cuDevicePrimaryCtxRetain(&c[i], d));
	}
	OK(cuLibraryLoadData(&library, read_text(path), NULL, NULL, 0, NULL, NULL, 0));
	for (int i = 0; i < 2; i++) {
		OK(cuCtxSetCurrent(c[i]));
		OK(cuLibraryGetModule(&m, library));
	}
	/* What was told before has arrived when the second is answered: an answer may be
	 * followed by another word. */
	for (int i = 0; i < 4; i++)
		look(c[1 - i % 2]);
	ready();
	OK(cuLibraryUnload(library));
	look(c[1]);
	ready();
	done();
	return 0;
}
