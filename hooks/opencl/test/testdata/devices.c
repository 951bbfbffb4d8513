/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An implementation of OpenCL that has devices and computes nothing. They tell of
 * themselves what those of real drivers do, by one extension or another; each is named
 * after what the layer must make of it.
 */
#define CL_USE_DEPRECATED_OPENCL_1_0_APIS
#define CL_USE_DEPRECATED_OPENCL_1_1_APIS
#define CL_USE_DEPRECATED_OPENCL_1_2_APIS
#define CL_USE_DEPRECATED_OPENCL_2_0_APIS
#define CL_USE_DEPRECATED_OPENCL_2_1_APIS
#define CL_USE_DEPRECATED_OPENCL_2_2_APIS
#include <CL/cl_ext.h>
#include <CL/cl_icd.h>
#include <stdbool.h>
#include <string.h>

#define NVIDIA 0x10de
#define AMD    0x1002

/* cl_nv_device_attribute_query */
#ifndef CL_DEVICE_PCI_BUS_ID_NV
#define CL_DEVICE_PCI_BUS_ID_NV 0x4008
#endif
#ifndef CL_DEVICE_PCI_SLOT_ID_NV
#define CL_DEVICE_PCI_SLOT_ID_NV 0x4009
#endif
#define PCI_DOMAIN_ID_NV 0x400a

static cl_icd_dispatch dispatch;

/* What a real driver begins its objects with. */
struct _cl_platform_id {
	cl_icd_dispatch *dispatch;
};
struct _cl_device_id {
	cl_icd_dispatch *dispatch;
	const char *name;
	cl_uint vendor;
	cl_uchar uuid;             /* the first byte of one; 0: it tells none */
	bool khr, nv, nv_domain;   /* how it tells its place */
	cl_device_pci_bus_info_khr pci;
};

static struct _cl_platform_id platform = { &dispatch };
static struct _cl_device_id devices[] = {
	{ &dispatch, "bound, by its UUID", NVIDIA, 1, .pci = { 0 } },
	{ &dispatch, "bound, by cl_khr_pci_bus_info", NVIDIA, .khr = true, .pci = { 0, 0x41, 2, 1 } },
	{ &dispatch, "bound, by NVIDIA's attributes", NVIDIA, .nv = true, .pci = { 0, 0x42, 3, 1 } },
	{ &dispatch, "bound, by NVIDIA's attributes with the domain", NVIDIA, .nv = true, .nv_domain = true, .pci = { 5, 0x42, 3, 1 } },
	{ &dispatch, "hidden, not bound by its UUID", NVIDIA, 9, .pci = { 0 } },
	{ &dispatch, "hidden, not bound by its place", NVIDIA, .khr = true, .pci = { 0, 0x49, 0, 0 } },
	{ &dispatch, "hidden, another function", NVIDIA, .khr = true, .pci = { 0, 0x41, 2, 0 } },
	{ &dispatch, "hidden, another device", NVIDIA, .nv = true, .pci = { 0, 0x42, 4, 1 } },
	{ &dispatch, "hidden, another domain", NVIDIA, .nv = true, .nv_domain = true, .pci = { 6, 0x42, 3, 1 } },
	{ &dispatch, "hidden, says nothing", NVIDIA, .pci = { 0 } },
	{ &dispatch, "left alone, of another vendor", AMD, .khr = true, .pci = { 0, 0x77, 0, 0 } },
};
#define DEVICES (sizeof(devices) / sizeof(devices[0]))

static cl_int answer(size_t size, void *value, size_t *size_ret, const void *from, size_t need)
{
	if (value && size < need)
		return CL_INVALID_VALUE;
	if (value)
		memcpy(value, from, need);
	if (size_ret)
		*size_ret = need;
	return CL_SUCCESS;
}

static cl_int CL_API_CALL platform_info(cl_platform_id p, cl_platform_info what, size_t size, void *value, size_t *size_ret)
{
	const char *text = what == CL_PLATFORM_EXTENSIONS    ? "cl_khr_icd" :
			   what == CL_PLATFORM_ICD_SUFFIX_KHR ? "TEST" :
			   what == CL_PLATFORM_VERSION        ? "OpenCL 1.2 test" :
								"test";

	(void)p;
	return answer(size, value, size_ret, text, strlen(text) + 1);
}

static cl_int CL_API_CALL device_ids(cl_platform_id p, cl_device_type type, cl_uint room, cl_device_id *list, cl_uint *number)
{
	(void)p;
	if (!(type & (CL_DEVICE_TYPE_GPU | CL_DEVICE_TYPE_DEFAULT)))
		return CL_DEVICE_NOT_FOUND;
	for (cl_uint i = 0; list && i < room && i < DEVICES; i++)
		list[i] = &devices[i];
	if (number)
		*number = DEVICES;
	return CL_SUCCESS;
}

static cl_int CL_API_CALL device_info(cl_device_id d, cl_device_info what, size_t size, void *value, size_t *size_ret)
{
	const cl_device_type type = CL_DEVICE_TYPE_GPU;
	cl_uchar uuid[16] = { d->uuid };
	const cl_uint slot = d->pci.pci_device << 3 | d->pci.pci_function;

	switch (what) {
	case CL_DEVICE_TYPE:
		return answer(size, value, size_ret, &type, sizeof(type));
	case CL_DEVICE_VENDOR_ID:
		return answer(size, value, size_ret, &d->vendor, sizeof(d->vendor));
	case CL_DEVICE_NAME:
		return answer(size, value, size_ret, d->name, strlen(d->name) + 1);
	case CL_DEVICE_UUID_KHR:
		return d->uuid ? answer(size, value, size_ret, uuid, sizeof(uuid)) : CL_INVALID_VALUE;
	case CL_DEVICE_PCI_BUS_INFO_KHR:
		return d->khr ? answer(size, value, size_ret, &d->pci, sizeof(d->pci)) : CL_INVALID_VALUE;
	case CL_DEVICE_PCI_BUS_ID_NV:
		return d->nv ? answer(size, value, size_ret, &d->pci.pci_bus, sizeof(cl_uint)) : CL_INVALID_VALUE;
	case CL_DEVICE_PCI_SLOT_ID_NV:
		return d->nv ? answer(size, value, size_ret, &slot, sizeof(slot)) : CL_INVALID_VALUE;
	case PCI_DOMAIN_ID_NV:
		return d->nv_domain ? answer(size, value, size_ret, &d->pci.pci_domain, sizeof(cl_uint)) : CL_INVALID_VALUE;
	}
	return CL_INVALID_VALUE;
}

static cl_int CL_API_CALL platform_ids(cl_uint room, cl_platform_id *list, cl_uint *number)
{
	dispatch.clGetPlatformInfo = platform_info;
	dispatch.clGetDeviceIDs = device_ids;
	dispatch.clGetDeviceInfo = device_info;
	if (list && room > 0)
		*list = &platform;
	if (number)
		*number = 1;
	return CL_SUCCESS;
}

CL_API_ENTRY void *CL_API_CALL clGetExtensionFunctionAddress(const char *name)
{
	return strcmp(name, "clIcdGetPlatformIDsKHR") == 0 ? (void *)platform_ids : NULL;
}

CL_API_ENTRY cl_int CL_API_CALL clGetPlatformInfo(cl_platform_id p, cl_platform_info what, size_t size, void *value, size_t *size_ret)
{
	return platform_info(p, what, size, value, size_ret);
}

CL_API_ENTRY cl_int CL_API_CALL clIcdGetPlatformIDsKHR(cl_uint room, cl_platform_id *list, cl_uint *number)
{
	return platform_ids(room, list, number);
}
