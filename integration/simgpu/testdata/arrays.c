/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays: what they are made of, what they cost, what is refused. */
#include "test.h"

static size_t used(void)
{
	size_t free, total;

	OK(cuMemGetInfo(&free, &total));
	return total - free;
}

static void describe(void)
{
	CUDA_ARRAY_DESCRIPTOR d = { .Width = 64, .Height = 32, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 2 };
	CUDA_ARRAY3D_DESCRIPTOR box = { .Width = 16, .Height = 8, .Depth = 4, .Format = CU_AD_FORMAT_UNSIGNED_INT8, .NumChannels = 4,
					.Flags = CUDA_ARRAY3D_SURFACE_LDST };
	CUDA_ARRAY3D_DESCRIPTOR got3;
	CUDA_ARRAY_DESCRIPTOR got;
	size_t before = used();
	CUarray a, b;

	OK(cuArrayCreate(&a, &d));
	CHECK(used() >= before + 64 * 32 * 8);
	OK(cuArrayGetDescriptor(&got, a));
	CHECK(got.Width == 64 && got.Height == 32 && got.Format == CU_AD_FORMAT_FLOAT && got.NumChannels == 2);
	OK(cuArray3DCreate(&b, &box));
	OK(cuArray3DGetDescriptor(&got3, b));
	CHECK(got3.Depth == 4 && got3.Flags == CUDA_ARRAY3D_SURFACE_LDST && got3.NumChannels == 4);
	OK(cuArrayDestroy(a));
	OK(cuArrayDestroy(b));
	CHECK(used() == before);
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuArrayDestroy(a));
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuArrayGetDescriptor(&got, a));
}

static void refused(void)
{
	CUDA_ARRAY_DESCRIPTOR d = { .Width = 64, .Height = 32, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 3 };
	CUDA_ARRAY3D_DESCRIPTOR cube = { .Width = 16, .Height = 16, .Depth = 5, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1,
					 .Flags = CUDA_ARRAY3D_CUBEMAP };
	CUarray a;

	GIVES(CUDA_ERROR_INVALID_VALUE, cuArrayCreate(&a, &d)); /* three channels */
	d.NumChannels = 1;
	d.Width = 0;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuArrayCreate(&a, &d));
	d.Width = 64;
	d.Format = (CUarray_format)0x77;
	GIVES(CUDA_ERROR_INVALID_VALUE, cuArrayCreate(&a, &d));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuArray3DCreate(&a, &cube));
	cube.Depth = 6;
	OK(cuArray3DCreate(&a, &cube));
	OK(cuArrayDestroy(a));
}

/* Each level is half of the one before, and there are no more than there can be. */
static void levels(void)
{
	CUDA_ARRAY3D_DESCRIPTOR d = { .Width = 32, .Height = 8, .Format = CU_AD_FORMAT_UNSIGNED_INT16, .NumChannels = 1 }, got;
	size_t before = used();
	CUmipmappedArray m;
	CUarray level;

	OK(cuMipmappedArrayCreate(&m, &d, 20));
	OK(cuMipmappedArrayGetLevel(&level, m, 0));
	OK(cuArray3DGetDescriptor(&got, level));
	CHECK(got.Width == 32 && got.Height == 8);
	OK(cuMipmappedArrayGetLevel(&level, m, 4));
	OK(cuArray3DGetDescriptor(&got, level));
	CHECK(got.Width == 2 && got.Height == 1);
	OK(cuMipmappedArrayGetLevel(&level, m, 5));
	GIVES(CUDA_ERROR_INVALID_VALUE, cuMipmappedArrayGetLevel(&level, m, 6));
	CHECK(used() > before);
	OK(cuMipmappedArrayDestroy(m));
	CHECK(used() == before);
	GIVES(CUDA_ERROR_INVALID_HANDLE, cuMipmappedArrayGetLevel(&level, m, 0));
}

static void textures(void)
{
	CUDA_ARRAY_DESCRIPTOR d = { .Width = 64, .Height = 32, .Format = CU_AD_FORMAT_FLOAT, .NumChannels = 1 };
	CUDA_TEXTURE_DESC t = { 0 };
	CUDA_RESOURCE_DESC r = { .resType = CU_RESOURCE_TYPE_ARRAY }, got;
	CUtexObject tex;
	CUarray a;

	OK(cuArrayCreate(&a, &d));
	r.res.array.hArray = a;
	OK(cuTexObjectCreate(&tex, &r, &t, NULL));
	OK(cuTexObjectGetResourceDesc(&got, tex));
	CHECK(got.resType == CU_RESOURCE_TYPE_ARRAY && got.res.array.hArray == a);
	OK(cuTexObjectDestroy(tex));
	OK(cuArrayDestroy(a));
}

int main(int argc, char **argv)
{
	begin(argc, argv, 0);
	describe();
	refused();
	levels();
	textures();
	return 0;
}
