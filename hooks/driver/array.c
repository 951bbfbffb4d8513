/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays. How the driver lays them out it does not say: they are charged what
 * their elements take, and vgpud adds the rest to what the driver uses. */
#include "memory.h"

/* Of one element, with all its channels; of formats with planes, on average. */
static uint64_t bits(CUarray_format format, uint64_t channels)
{
	switch (format) {
	case CU_AD_FORMAT_UNSIGNED_INT8:
	case CU_AD_FORMAT_SIGNED_INT8:
		return 8 * channels;
	case CU_AD_FORMAT_UNSIGNED_INT16:
	case CU_AD_FORMAT_SIGNED_INT16:
	case CU_AD_FORMAT_HALF:
		return 16 * channels;
	case CU_AD_FORMAT_BC1_UNORM:
	case CU_AD_FORMAT_BC1_UNORM_SRGB:
	case CU_AD_FORMAT_BC4_UNORM:
	case CU_AD_FORMAT_BC4_SNORM:
		return 4;
	case CU_AD_FORMAT_UNORM_INT8X1:
	case CU_AD_FORMAT_SNORM_INT8X1:
	case CU_AD_FORMAT_BC2_UNORM:
	case CU_AD_FORMAT_BC2_UNORM_SRGB:
	case CU_AD_FORMAT_BC3_UNORM:
	case CU_AD_FORMAT_BC3_UNORM_SRGB:
	case CU_AD_FORMAT_BC5_UNORM:
	case CU_AD_FORMAT_BC5_SNORM:
	case CU_AD_FORMAT_BC6H_UF16:
	case CU_AD_FORMAT_BC6H_SF16:
	case CU_AD_FORMAT_BC7_UNORM:
	case CU_AD_FORMAT_BC7_UNORM_SRGB:
		return 8;
	case CU_AD_FORMAT_NV12:
	case CU_AD_FORMAT_UINT8_SEMIPLANAR_420:
	case CU_AD_FORMAT_UINT8_PLANAR_420:
		return 12;
	case CU_AD_FORMAT_UNORM_INT8X2:
	case CU_AD_FORMAT_SNORM_INT8X2:
	case CU_AD_FORMAT_UNORM_INT16X1:
	case CU_AD_FORMAT_SNORM_INT16X1:
	case CU_AD_FORMAT_NV16:
	case CU_AD_FORMAT_YUY2:
	case CU_AD_FORMAT_UINT8_PACKED_422:
	case CU_AD_FORMAT_UINT8_SEMIPLANAR_422:
	case CU_AD_FORMAT_UINT8_PLANAR_422:
		return 16;
	case CU_AD_FORMAT_P010:
	case CU_AD_FORMAT_P016:
	case CU_AD_FORMAT_Y444_PLANAR8:
	case CU_AD_FORMAT_YUV444_8bit_SemiPlanar:
	case CU_AD_FORMAT_UINT8_PACKED_444:
	case CU_AD_FORMAT_UINT16_SEMIPLANAR_420:
	case CU_AD_FORMAT_UINT8_SEMIPLANAR_444:
	case CU_AD_FORMAT_UINT16_PLANAR_420:
	case CU_AD_FORMAT_UINT8_PLANAR_444:
		return 24;
	case CU_AD_FORMAT_UNORM_INT8X4:
	case CU_AD_FORMAT_SNORM_INT8X4:
	case CU_AD_FORMAT_UNORM_INT16X2:
	case CU_AD_FORMAT_SNORM_INT16X2:
	case CU_AD_FORMAT_P210:
	case CU_AD_FORMAT_P216:
	case CU_AD_FORMAT_Y210:
	case CU_AD_FORMAT_Y216:
	case CU_AD_FORMAT_AYUV:
	case CU_AD_FORMAT_Y410:
	case CU_AD_FORMAT_UNORM_INT_101010_2:
	case CU_AD_FORMAT_UINT16_SEMIPLANAR_422:
	case CU_AD_FORMAT_UINT16_PLANAR_422:
		return 32;
	case CU_AD_FORMAT_Y444_PLANAR10:
	case CU_AD_FORMAT_YUV444_16bit_SemiPlanar:
	case CU_AD_FORMAT_UINT16_SEMIPLANAR_444:
	case CU_AD_FORMAT_UINT16_PLANAR_444:
		return 48;
	case CU_AD_FORMAT_UNORM_INT16X4:
	case CU_AD_FORMAT_SNORM_INT16X4:
	case CU_AD_FORMAT_Y416:
		return 64;
	default:
		return 32 * channels; /* words, or what a later driver has */
	}
}

static uint64_t or_one(uint64_t n)
{
	return n ? n : 1;
}

/* 0 for one without memory of its own, and for a size that no driver can give. */
static uint64_t level_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int level)
{
	bool layers = d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
	uint64_t depth = layers ? d->Depth : d->Depth >> level, n;

	if (d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING))
		return 0;
	if (__builtin_mul_overflow(or_one(d->Width >> level), or_one(d->Height >> level), &n) ||
	    __builtin_mul_overflow(n, or_one(depth), &n) ||
	    __builtin_mul_overflow(n, bits(d->Format, d->NumChannels), &n))
		return 0;
	return n / 8 + (n % 8 != 0);
}

static uint64_t mipmap_bytes(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned int levels)
{
	uint64_t sum = 0;

	for (unsigned int i = 0; i < levels && i < 64; i++)
		if (__builtin_add_overflow(sum, level_bytes(d, i), &sum))
			return 0;
	return sum;
}

/* What stands around a creation that is real(...). */
#define CREATE(bytes, kind, out, call) do { \
	struct vgpu_charge *c_; \
	CUresult r_; \
	\
	vgpu_thread.nested++; \
	r_ = vgpu_charge_begin(&c_, vgpu_current_gpu(), bytes); \
	if (r_ == CUDA_SUCCESS) { \
		r_ = call; \
		vgpu_charge_end(c_, r_, kind, r_ == CUDA_SUCCESS ? (uintptr_t)*(out) : 0); \
	} \
	vgpu_thread.nested--; \
	return r_; \
} while (0)

VGPU_HOOK(vgpu_array_create, cuArrayCreate_v2, CUarray *array, const CUDA_ARRAY_DESCRIPTOR *desc)
{
	CUDA_ARRAY3D_DESCRIPTOR d;

	if (!vgpu_managed(caller) || !desc)
		return real(array, desc);
	d = (CUDA_ARRAY3D_DESCRIPTOR){ .Width = desc->Width, .Height = desc->Height, .Format = desc->Format, .NumChannels = desc->NumChannels };
	CREATE(level_bytes(&d, 0), VGPU_CHARGE_ARRAY, array, real(array, desc));
}

VGPU_HOOK(vgpu_array_create_v1, cuArrayCreate, CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *desc)
{
	CUDA_ARRAY3D_DESCRIPTOR d;

	if (!vgpu_managed(caller) || !desc)
		return real(array, desc);
	d = (CUDA_ARRAY3D_DESCRIPTOR){ .Width = desc->Width, .Height = desc->Height, .Format = desc->Format, .NumChannels = desc->NumChannels };
	CREATE(level_bytes(&d, 0), VGPU_CHARGE_ARRAY, array, real(array, desc));
}

VGPU_HOOK(vgpu_array3d_create, cuArray3DCreate_v2, CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc)
{
	if (!vgpu_managed(caller) || !desc)
		return real(array, desc);
	CREATE(level_bytes(desc, 0), VGPU_CHARGE_ARRAY, array, real(array, desc));
}

VGPU_HOOK(vgpu_array3d_create_v1, cuArray3DCreate, CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *desc)
{
	CUDA_ARRAY3D_DESCRIPTOR d;

	if (!vgpu_managed(caller) || !desc)
		return real(array, desc);
	d = (CUDA_ARRAY3D_DESCRIPTOR){ .Width = desc->Width, .Height = desc->Height, .Depth = desc->Depth,
				       .Format = desc->Format, .NumChannels = desc->NumChannels, .Flags = desc->Flags };
	CREATE(level_bytes(&d, 0), VGPU_CHARGE_ARRAY, array, real(array, desc));
}

VGPU_HOOK(vgpu_mipmap_create, cuMipmappedArrayCreate, CUmipmappedArray *mipmap, const CUDA_ARRAY3D_DESCRIPTOR *desc,
	  unsigned int levels)
{
	if (!vgpu_managed(caller) || !desc)
		return real(mipmap, desc, levels);
	CREATE(mipmap_bytes(desc, levels), VGPU_CHARGE_MIPMAP, mipmap, real(mipmap, desc, levels));
}

VGPU_HOOK(vgpu_array_destroy, cuArrayDestroy, CUarray array)
{
	struct vgpu_charge *c;
	CUresult r;

	if (!vgpu_managed(caller))
		return real(array);
	vgpu_thread.nested++;
	c = vgpu_charge_take(VGPU_CHARGE_ARRAY, (uintptr_t)array);
	r = real(array);
	vgpu_charge_taken(c, r == CUDA_SUCCESS);
	vgpu_thread.nested--;
	return r;
}

VGPU_HOOK(vgpu_mipmap_destroy, cuMipmappedArrayDestroy, CUmipmappedArray mipmap)
{
	struct vgpu_charge *c;
	CUresult r;

	if (!vgpu_managed(caller))
		return real(mipmap);
	vgpu_thread.nested++;
	c = vgpu_charge_take(VGPU_CHARGE_MIPMAP, (uintptr_t)mipmap);
	r = real(mipmap);
	vgpu_charge_taken(c, r == CUDA_SUCCESS);
	vgpu_thread.nested--;
	return r;
}
