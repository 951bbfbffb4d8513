/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The memory ledger: what the process allocates on a GPU is charged before the
 * driver is asked, and given back after the driver has freed it. vgpud leases
 * and sums over the processes of the container (hooks/gate/memory.c).
 *
 * All of this runs on the application's threads, nested: a signal handler that
 * allocates meanwhile goes straight to the driver. Locks here are not taken by
 * the library's thread, and are not held while a thread waits for vgpud.
 */
#ifndef VGPU_MEMORY_H
#define VGPU_MEMORY_H

#include "../gate/hash.h"
#include "driver.h"

/* ---- devices (device.c) -------------------------------------------------- */

/* After the real cuInit: which device is which bound GPU, by UUID. */
void vgpu_devices_find(const uint8_t (*uuid)[16], int n);
/* The index of a GPU in what was bound, or -1: then nothing is charged. */
int vgpu_device_gpu(CUdevice device);
/* The device that is this GPU, or -1. */
CUdevice vgpu_gpu_device(int gpu);
int vgpu_current_gpu(void);
/* What the driver itself uses on the device has changed; -1: on any. */
void vgpu_driver_changed(CUdevice device);

/* ---- charges (charges.c) ------------------------------------------------- */

enum vgpu_charge_kind { VGPU_CHARGE_POINTER, VGPU_CHARGE_ARRAY, VGPU_CHARGE_MIPMAP };

/* Something that the driver allocated in a context. */
struct vgpu_charge {
	struct vgpu_node node;
	unsigned gpu;
	uint64_t bytes;
	CUcontext context;
};

/* Charges; gives back what pools hold without using it before it fails. */
bool vgpu_memory_reserve(int gpu, uint64_t bytes);
/* What the caller hears when there is not so much: out of memory, unless the
 * driver refuses any allocation now, since a capture is open; then the capture is
 * broken by that, as it is without us. */
CUresult vgpu_memory_refused(void);
/* Before the driver is asked. *c is NULL if nothing is to be charged. */
CUresult vgpu_charge_begin(struct vgpu_charge **c, int gpu, uint64_t bytes);
/* After it: enters the charge, or gives it back if r is an error. */
void vgpu_charge_end(struct vgpu_charge *c, CUresult r, enum vgpu_charge_kind kind, uint64_t key);
/* The end of one: out of the table before the driver is asked, since it may give
 * the address out again before the call returns here; gone gives back, else it is
 * put back. NULL: unknown, and none of ours to count. */
struct vgpu_charge *vgpu_charge_take(enum vgpu_charge_kind kind, uint64_t key);
struct vgpu_charge *vgpu_charges_take_context(CUcontext context);
void vgpu_charge_taken(struct vgpu_charge *c, bool gone);

/* ---- pools (pool.c) ------------------------------------------------------- */

/* Gives back what the pools of a GPU were charged beyond what they hold. */
void vgpu_pools_settle(int gpu);
/* The same after they were made to hold no more than they must. */
void vgpu_pools_reclaim(int gpu);
/* A graph may allocate on the device from now on. */
void vgpu_graph_memory_used(CUdevice device);
/* Before a graph is launched: an earlier one took more than there is. */
bool vgpu_graph_memory_full(void);
/* After it; outside the gate. */
void vgpu_graph_memory_launched(void);

/* ---- hooks ---------------------------------------------------------------- */

#define VGPU_HOOK(function, name, ...) CUresult function(__typeof__(&name) real, const void *caller, ##__VA_ARGS__)

/* charges.c */
VGPU_HOOK(vgpu_mem_alloc, cuMemAlloc_v2, CUdeviceptr *dptr, size_t bytes);
VGPU_HOOK(vgpu_mem_alloc_v1, cuMemAlloc, CUdeviceptr_v1 *dptr, unsigned int bytes);
VGPU_HOOK(vgpu_mem_alloc_managed, cuMemAllocManaged, CUdeviceptr *dptr, size_t bytes, unsigned int flags);
VGPU_HOOK(vgpu_mem_alloc_pitch, cuMemAllocPitch_v2, CUdeviceptr *dptr, size_t *pitch, size_t width, size_t height,
	  unsigned int element);
VGPU_HOOK(vgpu_mem_alloc_pitch_v1, cuMemAllocPitch, CUdeviceptr_v1 *dptr, unsigned int *pitch, unsigned int width,
	  unsigned int height, unsigned int element);
VGPU_HOOK(vgpu_mem_free, cuMemFree_v2, CUdeviceptr dptr);
VGPU_HOOK(vgpu_mem_free_v1, cuMemFree, CUdeviceptr_v1 dptr);
void vgpu_context_made(struct vgpu_call *call, CUresult r, CUdevice device);
void vgpu_module_changed(struct vgpu_call *call, CUresult r);
void vgpu_library_changed(struct vgpu_call *call, CUresult r);

/* pool.c */
VGPU_HOOK(vgpu_mem_alloc_async, cuMemAllocAsync, CUdeviceptr *dptr, size_t bytes, CUstream stream);
VGPU_HOOK(vgpu_mem_alloc_async_ptsz, cuMemAllocAsync, CUdeviceptr *dptr, size_t bytes, CUstream stream);
VGPU_HOOK(vgpu_mem_alloc_from_pool, cuMemAllocFromPoolAsync, CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool,
	  CUstream stream);
VGPU_HOOK(vgpu_mem_alloc_from_pool_ptsz, cuMemAllocFromPoolAsync, CUdeviceptr *dptr, size_t bytes, CUmemoryPool pool,
	  CUstream stream);
VGPU_HOOK(vgpu_mem_free_async, cuMemFreeAsync, CUdeviceptr dptr, CUstream stream);
VGPU_HOOK(vgpu_mem_free_async_ptsz, cuMemFreeAsync, CUdeviceptr dptr, CUstream stream);
VGPU_HOOK(vgpu_mem_pool_create, cuMemPoolCreate, CUmemoryPool *pool, const CUmemPoolProps *props);
VGPU_HOOK(vgpu_mem_pool_destroy, cuMemPoolDestroy, CUmemoryPool pool);
void vgpu_pool_told(struct vgpu_call *call, CUresult r, CUmemLocation *location, CUmemAllocationType type);
void vgpu_pool_trimmed(struct vgpu_call *call);
void vgpu_graph_alloc_end(struct vgpu_call *call, CUresult r, const CUDA_MEM_ALLOC_NODE_PARAMS *params);
void vgpu_graph_node_end(CUresult r, const CUgraphNodeParams *params);

/* vmm.c */
VGPU_HOOK(vgpu_mem_create, cuMemCreate, CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *prop,
	  unsigned long long flags);
VGPU_HOOK(vgpu_mem_release, cuMemRelease, CUmemGenericAllocationHandle handle);
VGPU_HOOK(vgpu_mem_map, cuMemMap, CUdeviceptr ptr, size_t size, size_t offset, CUmemGenericAllocationHandle handle,
	  unsigned long long flags);
VGPU_HOOK(vgpu_mem_unmap, cuMemUnmap, CUdeviceptr ptr, size_t size);
VGPU_HOOK(vgpu_mem_retain, cuMemRetainAllocationHandle, CUmemGenericAllocationHandle *handle, void *address);
VGPU_HOOK(vgpu_mem_import, cuMemImportFromShareableHandle, CUmemGenericAllocationHandle *handle, void *os_handle,
	  CUmemAllocationHandleType type);

/* array.c */
VGPU_HOOK(vgpu_array_create, cuArrayCreate_v2, CUarray *array, const CUDA_ARRAY_DESCRIPTOR *desc);
VGPU_HOOK(vgpu_array_create_v1, cuArrayCreate, CUarray *array, const CUDA_ARRAY_DESCRIPTOR_v1 *desc);
VGPU_HOOK(vgpu_array3d_create, cuArray3DCreate_v2, CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR *desc);
VGPU_HOOK(vgpu_array3d_create_v1, cuArray3DCreate, CUarray *array, const CUDA_ARRAY3D_DESCRIPTOR_v1 *desc);
VGPU_HOOK(vgpu_array_destroy, cuArrayDestroy, CUarray array);
VGPU_HOOK(vgpu_mipmap_create, cuMipmappedArrayCreate, CUmipmappedArray *mipmap, const CUDA_ARRAY3D_DESCRIPTOR *desc,
	  unsigned int levels);
VGPU_HOOK(vgpu_mipmap_destroy, cuMipmappedArrayDestroy, CUmipmappedArray mipmap);

/* info.c */
VGPU_HOOK(vgpu_mem_get_info, cuMemGetInfo_v2, size_t *free, size_t *total);
VGPU_HOOK(vgpu_mem_get_info_v1, cuMemGetInfo, unsigned int *free, unsigned int *total);
VGPU_HOOK(vgpu_total_mem, cuDeviceTotalMem_v2, size_t *bytes, CUdevice device);
VGPU_HOOK(vgpu_total_mem_v1, cuDeviceTotalMem, unsigned int *bytes, CUdevice device);
VGPU_HOOK(vgpu_device_name, cuDeviceGetName, char *name, int len, CUdevice device);

#endif
