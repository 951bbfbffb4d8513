/* SPDX-License-Identifier: Apache-2.0 */
/* The two functions that an ICD loader asks of a layer, and addresses that programs
 * ask for by name. Nothing of ours runs before a program asks for devices. */
#define _GNU_SOURCE
#include <string.h>

#include "opencl.h"

#define NAME "vgpu"
#define HOOKS 96

cl_icd_dispatch vgpu_next;
VGPU_TLS struct vgpu_cl_thread vgpu_cl_thread;

/* Written once, by clInitLayer; the last but one is a count for vgpud. */
static struct {
	bool initialised;
	size_t entries;            /* that the loader knows */
	cl_icd_dispatch dispatch;
	struct hook {
		const char *name;
		vgpu_function function;
	} hook[HOOKS];
	int n;
} layer;

static _Atomic uint64_t unhooked;

void vgpu_hook(const char *name, size_t at, vgpu_function hook)
{
	vgpu_function *entry = (vgpu_function *)((char *)&layer.dispatch + at);

	if (at / sizeof(void *) >= layer.entries || !*entry)
		return;
	*entry = hook;
	if (layer.n < HOOKS)
		layer.hook[layer.n++] = (struct hook){ name, hook };
}

void vgpu_lookups_report(void)
{
	uint64_t n = atomic_load_explicit(&unhooked, memory_order_relaxed);

	if (n > 0)
		vgpu_gate_stats(n, 0);
}

/* A function that an implementation gave out by name goes past the loader, and so
 * past us: of those that are ours ours is given. Others that submit are counted. */
static void *given(const char *name, void *address)
{
	if (!address || !name || vgpu_cl_thread.nested > 0)
		return address;
	for (int i = 0; i < layer.n; i++)
		if (strcmp(layer.hook[i].name, name) == 0)
			return (void *)layer.hook[i].function;
	if (strncmp(name, "clEnqueue", 9) == 0) {
		atomic_fetch_add_explicit(&unhooked, 1, memory_order_relaxed);
		vgpu_lookups_report();
	}
	return address;
}

static void *CL_API_CALL hook_clGetExtensionFunctionAddress(const char *name)
{
	return given(name, vgpu_next.clGetExtensionFunctionAddress(name));
}

static void *CL_API_CALL hook_clGetExtensionFunctionAddressForPlatform(cl_platform_id platform, const char *name)
{
	return given(name, vgpu_next.clGetExtensionFunctionAddressForPlatform(platform, name));
}

CL_API_ENTRY __attribute__((visibility("default"))) cl_int CL_API_CALL clGetLayerInfo(cl_layer_info info, size_t size, void *value,
										      size_t *size_ret)
{
	const cl_layer_api_version version = CL_LAYER_API_VERSION_100;
	const void *from = info == CL_LAYER_NAME ? (const void *)NAME : &version;
	size_t need = info == CL_LAYER_NAME ? sizeof(NAME) : sizeof(version);

	if (info != CL_LAYER_NAME && info != CL_LAYER_API_VERSION)
		return CL_INVALID_VALUE;
	if (value && size < need)
		return CL_INVALID_VALUE;
	if (value)
		memcpy(value, from, need);
	if (size_ret)
		*size_ret = need;
	return CL_SUCCESS;
}

CL_API_ENTRY __attribute__((visibility("default"))) cl_int CL_API_CALL clInitLayer(cl_uint entries, const cl_icd_dispatch *target,
										   cl_uint *entries_ret,
										   const cl_icd_dispatch **dispatch)
{
	if (!target || !entries_ret || !dispatch)
		return CL_INVALID_VALUE;
	/* A second loader in the process. One that is asked for the layer twice, by a
	 * variable and by a file, sees that itself. */
	if (layer.initialised)
		return CL_INVALID_OPERATION;
	layer.initialised = true;
	layer.entries = sizeof(cl_icd_dispatch) / sizeof(void *);
	if (entries < layer.entries)
		layer.entries = entries;
	memcpy(&vgpu_next, target, layer.entries * sizeof(void *));
	layer.dispatch = vgpu_next;
	vgpu_device_hooks();
	vgpu_work_hooks();
	vgpu_sync_hooks();
	vgpu_callback_hooks();
	vgpu_charge_hooks();
	VGPU_HOOK(clGetExtensionFunctionAddress);
	VGPU_HOOK(clGetExtensionFunctionAddressForPlatform);
	*entries_ret = (cl_uint)layer.entries;
	*dispatch = &layer.dispatch;
	return CL_SUCCESS;
}
