/* SPDX-License-Identifier: Apache-2.0 */
/* module_memory KERNELS: a module costs memory until it is unloaded. */
#include "test.h"

int main(int argc, char **argv)
{
	size_t before, during, after, total;
	char path[4096];
	CUmodule m;

	begin(argc, argv, 0);
	snprintf(path, sizeof(path), "%s/fill_u32.ptx", kernels_dir);
	OK(cuMemGetInfo(&before, &total));
	OK(cuModuleLoad(&m, path));
	OK(cuMemGetInfo(&during, &total));
	CHECK(before - during >= 2 << 20);
	OK(cuModuleUnload(m));
	OK(cuMemGetInfo(&after, &total));
	CHECK(after == before);
	return 0;
}
