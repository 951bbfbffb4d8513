/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which devices are the vGPU's. A device is a GPU by its UUID (cl_khr_device_uuid) or
 * its place on the PCI bus (cl_khr_pci_bus_info, cl_nv_device_attribute_query); vgpud
 * tells which places the node's GPUs have, in a file of the vGPU's directory. Where
 * GPUs are simulated the same file can say that a CPU device stands for one. The
 * vGPU's other GPUs are hidden, and all other devices are left alone.
 */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "opencl.h"

#define FILE_NAME VGPU_DIR "/" VGPU_GPUS
#define NODE_GPUS 64           /* of a node, at most */
#define DEVICES   64           /* remembered; more are asked for each time */
#define NVIDIA    0x10de

#define DEVICE_UUID          0x106a
#define DEVICE_PCI_BUS_INFO  0x410f
#define NV_PCI_BUS_ID        0x4008
#define NV_PCI_SLOT_ID       0x4009 /* device and function */
#define NV_PCI_DOMAIN_ID     0x400a

struct pci {
	cl_uint domain, bus, device, function;
};

static struct {
	pthread_once_t read;
	/* What vgpud says, written once. */
	bool cpu;                  /* a CPU device stands for the first GPU */
	int n;
	struct node_gpu {
		uint8_t uuid[16];
		struct pci pci;
		bool has_pci;
	} gpu[NODE_GPUS];
	/* Under the client's lock. */
	int bound;
	uint8_t uuid[VGPU_UUIDS][16];
	/* Under the lock. */
	pthread_mutex_t lock;
	int known;
	struct {
		cl_device_id device;
		int gpu;
	} device[DEVICES];
} devices = { .read = PTHREAD_ONCE_INIT, .lock = PTHREAD_MUTEX_INITIALIZER };

/* "GPU-" and 36 characters. */
static bool read_uuid(const char *text, uint8_t uuid[16])
{
	unsigned byte;

	if (strncmp(text, "GPU-", 4) != 0)
		return false;
	text += 4;
	for (int i = 0; i < 16; i++) {
		text += *text == '-';
		if (sscanf(text, "%2x", &byte) != 1)
			return false;
		uuid[i] = (uint8_t)byte;
		text += 2;
	}
	return true;
}

static void read_file(void)
{
	FILE *f = fopen(FILE_NAME, "re");
	char line[160], uuid[64], pci[64];
	struct node_gpu *g;
	int n;

	while (f && fgets(line, sizeof(line), f)) {
		n = sscanf(line, "%63s %63s", uuid, pci);
		if (n >= 1 && strcmp(uuid, "cpu") == 0)
			devices.cpu = true;
		g = &devices.gpu[devices.n];
		if (n < 1 || devices.n == NODE_GPUS || !read_uuid(uuid, g->uuid))
			continue;
		g->has_pci = n == 2 && sscanf(pci, "%x:%x:%x.%x", &g->pci.domain, &g->pci.bus, &g->pci.device, &g->pci.function) == 4;
		devices.n++;
	}
	if (f)
		fclose(f);
}

static bool ask(cl_device_id device, cl_device_info what, void *value, size_t size)
{
	size_t got = 0;

	return vgpu_next.clGetDeviceInfo(device, what, size, value, &got) == CL_SUCCESS && got == size;
}

static bool pci_of(cl_device_id device, struct pci *pci)
{
	cl_uint slot;

	memset(pci, 0, sizeof(*pci));
	if (ask(device, DEVICE_PCI_BUS_INFO, pci, sizeof(*pci)))
		return true;
	if (!ask(device, NV_PCI_BUS_ID, &pci->bus, sizeof(pci->bus)) || !ask(device, NV_PCI_SLOT_ID, &slot, sizeof(slot)))
		return false;
	if (!ask(device, NV_PCI_DOMAIN_ID, &pci->domain, sizeof(pci->domain)))
		pci->domain = 0;
	pci->device = slot >> 3;
	pci->function = slot & 7;
	return true;
}

static bool same_place(const struct pci *a, const struct pci *b)
{
	return a->domain == b->domain && a->bus == b->bus && a->device == b->device && a->function == b->function;
}

/* Makes this process a client, and asks for its GPUs, once. */
static bool bind(void)
{
	struct vgpu_gate_error err;
	int cancel, n;
	bool ok = false;

	if (vgpu_client_child())
		return false;
	vgpu_client_lock(&cancel);
	if (vgpu_client_began()) {
		ok = true;
	} else {
		n = vgpu_client_bind(&vgpu_ops, devices.uuid, &err);
		devices.bound = n < 0 ? 0 : n;
		ok = n >= 0 && vgpu_client_begin();
		if (ok)
			vgpu_lookups_report();
	}
	vgpu_client_unlock(cancel);
	return ok;
}

static int bound_index(const uint8_t uuid[16])
{
	for (int i = 0; i < devices.bound; i++)
		if (memcmp(devices.uuid[i], uuid, 16) == 0)
			return i;
	return VGPU_HIDDEN;
}

static int find(cl_device_id device)
{
	cl_device_type type = 0;
	uint8_t uuid[16];
	struct pci pci;
	cl_uint vendor = 0;
	bool has_uuid, has_pci;

	ask(device, CL_DEVICE_TYPE, &type, sizeof(type));
	if (type & CL_DEVICE_TYPE_CPU) {
		if (!devices.cpu)
			return VGPU_OTHER;
		return bind() && devices.bound > 0 ? 0 : VGPU_HIDDEN;
	}
	has_uuid = ask(device, DEVICE_UUID, uuid, sizeof(uuid));
	has_pci = pci_of(device, &pci);
	for (int i = 0; i < devices.n; i++) {
		if (!(has_uuid && memcmp(devices.gpu[i].uuid, uuid, 16) == 0) &&
		    !(has_pci && devices.gpu[i].has_pci && same_place(&devices.gpu[i].pci, &pci)))
			continue;
		return bind() ? bound_index(devices.gpu[i].uuid) : VGPU_HIDDEN;
	}
	/* One of the vendor's that vgpud did not name must not compute past it. */
	ask(device, CL_DEVICE_VENDOR_ID, &vendor, sizeof(vendor));
	return vendor == NVIDIA ? VGPU_HIDDEN : VGPU_OTHER;
}

static int find_root(cl_device_id device)
{
	cl_device_id parent;
	int gpu;

	pthread_once(&devices.read, read_file);
	for (int depth = 0; depth < 8 && ask(device, CL_DEVICE_PARENT_DEVICE, &parent, sizeof(parent)) && parent; depth++)
		device = parent;
	pthread_mutex_lock(&devices.lock);
	for (int i = 0; i < devices.known; i++) {
		if (devices.device[i].device == device) {
			gpu = devices.device[i].gpu;
			pthread_mutex_unlock(&devices.lock);
			return gpu;
		}
	}
	pthread_mutex_unlock(&devices.lock);
	gpu = find(device);
	pthread_mutex_lock(&devices.lock);
	/* Hidden for want of a GPU: the next call asks again. */
	if ((gpu != VGPU_HIDDEN || devices.bound > 0) && devices.known < DEVICES) {
		devices.device[devices.known].device = device;
		devices.device[devices.known++].gpu = gpu;
	}
	pthread_mutex_unlock(&devices.lock);
	return gpu;
}

int vgpu_device_gpu(cl_device_id device)
{
	int gpu;

	vgpu_cl_thread.nested++;
	gpu = find_root(device);
	vgpu_cl_thread.nested--;
	return gpu >= 0 && vgpu_client_child() ? VGPU_HIDDEN : gpu;
}

uint32_t vgpu_context_gpus(cl_context context)
{
	cl_device_id list[DEVICES];
	uint32_t gpus = 0;
	size_t size = 0;
	int gpu;

	if (vgpu_next.clGetContextInfo(context, CL_CONTEXT_DEVICES, sizeof(list), list, &size) != CL_SUCCESS)
		return 0;
	for (size_t i = 0; i < size / sizeof(list[0]); i++)
		if ((gpu = vgpu_device_gpu(list[i])) >= 0)
			gpus |= 1u << gpu;
	return gpus;
}

uint64_t vgpu_memory_limit(int gpu)
{
	uint64_t limit;

	return vgpu_gate_memory((unsigned)gpu, &limit, NULL) == 0 ? limit : UINT64_MAX;
}

/* ---- what programs see of it --------------------------------------------------- */

/* All devices of a kind that are not hidden; *n is 0 if there is none. */
static cl_int visible(cl_platform_id platform, cl_device_type type, cl_device_id **list, cl_uint *n)
{
	cl_uint all = 0;
	cl_int r;

	*list = NULL;
	*n = 0;
	r = vgpu_next.clGetDeviceIDs(platform, type, 0, NULL, &all);
	if (r != CL_SUCCESS)
		return r;
	*list = calloc(all + 1, sizeof(**list));
	if (!*list)
		return CL_OUT_OF_HOST_MEMORY;
	r = vgpu_next.clGetDeviceIDs(platform, type, all, *list, NULL);
	for (cl_uint i = 0; r == CL_SUCCESS && i < all; i++)
		if (vgpu_device_gpu((*list)[i]) != VGPU_HIDDEN)
			(*list)[(*n)++] = (*list)[i];
	if (r == CL_SUCCESS && *n == 0 && type == CL_DEVICE_TYPE_DEFAULT) {
		free(*list);
		r = visible(platform, CL_DEVICE_TYPE_ALL, list, n);
		*n = *n > 0;
	}
	return r == CL_SUCCESS && *n == 0 ? CL_DEVICE_NOT_FOUND : r;
}

static cl_int CL_API_CALL hook_clGetDeviceIDs(cl_platform_id platform, cl_device_type type, cl_uint room, cl_device_id *list,
					      cl_uint *number)
{
	cl_device_id *seen;
	cl_uint n;
	cl_int r;

	if (vgpu_cl_thread.nested > 0 || (!list && !number) || (list && room == 0))
		return vgpu_next.clGetDeviceIDs(platform, type, room, list, number);
	r = visible(platform, type, &seen, &n);
	if (number)
		*number = n;
	if (list && r == CL_SUCCESS)
		memcpy(list, seen, (room < n ? room : n) * sizeof(*list));
	free(seen);
	return r;
}

static void context_changed(cl_context context)
{
	uint32_t gpus = vgpu_context_gpus(context);

	for (unsigned i = 0; i < VGPU_UUIDS; i++)
		if (gpus >> i & 1)
			vgpu_gate_memory_changed(i);
}

static cl_context CL_API_CALL hook_clCreateContext(const cl_context_properties *properties, cl_uint n, const cl_device_id *list,
						   void(CL_CALLBACK *notify)(const char *, const void *, size_t, void *), void *data,
						   cl_int *error)
{
	cl_context context;

	for (cl_uint i = 0; list && i < n && vgpu_cl_thread.nested == 0; i++) {
		if (list[i] && vgpu_device_gpu(list[i]) == VGPU_HIDDEN) {
			if (error)
				*error = CL_DEVICE_NOT_AVAILABLE;
			return NULL;
		}
	}
	context = vgpu_next.clCreateContext(properties, n, list, notify, data, error);
	if (context)
		context_changed(context);
	return context;
}

static cl_context CL_API_CALL hook_clCreateContextFromType(const cl_context_properties *properties, cl_device_type type,
							   void(CL_CALLBACK *notify)(const char *, const void *, size_t, void *),
							   void *data, cl_int *error)
{
	cl_platform_id platform = NULL;
	cl_context context = NULL;
	cl_device_id *list = NULL;
	cl_uint n = 0;
	cl_int r;

	for (const cl_context_properties *p = properties; p && *p; p += 2)
		if (*p == CL_CONTEXT_PLATFORM)
			platform = (cl_platform_id)p[1];
	if (vgpu_cl_thread.nested > 0 || (!platform && vgpu_next.clGetPlatformIDs(1, &platform, NULL) != CL_SUCCESS))
		return vgpu_next.clCreateContextFromType(properties, type, notify, data, error);
	r = visible(platform, type, &list, &n);
	if (r == CL_SUCCESS)
		context = vgpu_next.clCreateContext(properties, n, list, notify, data, &r);
	free(list);
	if (context)
		context_changed(context);
	if (error)
		*error = r;
	return context;
}

static cl_int CL_API_CALL hook_clGetDeviceInfo(cl_device_id device, cl_device_info what, size_t size, void *value, size_t *size_ret)
{
	cl_int r = vgpu_next.clGetDeviceInfo(device, what, size, value, size_ret);
	uint64_t limit;
	cl_ulong told;
	int gpu;

	if (r != CL_SUCCESS || !value || !vgpu_managed() ||
	    (what != CL_DEVICE_GLOBAL_MEM_SIZE && what != CL_DEVICE_MAX_MEM_ALLOC_SIZE))
		return r;
	gpu = vgpu_device_gpu(device);
	if (gpu < 0)
		return r;
	limit = vgpu_memory_limit(gpu);
	memcpy(&told, value, sizeof(told));
	told = told < limit ? told : limit;
	memcpy(value, &told, sizeof(told));
	return r;
}

void vgpu_device_hooks(void)
{
	VGPU_HOOK(clGetDeviceIDs);
	VGPU_HOOK(clGetDeviceInfo);
	VGPU_HOOK(clCreateContext);
	VGPU_HOOK(clCreateContextFromType);
}
