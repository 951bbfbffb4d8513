# SPDX-License-Identifier: Apache-2.0
"""A CUDA client that nobody here wrote: NVIDIA's cuda-bindings, whose driver part
finds every call by cuGetProcAddress.

    python3 bindings_vector.py KERNELS [ROUNDS]

KERNELS is the directory of the PTX. Each round does the same sum in each of the
ways below. Prints one line of JSON; ends with an error if a value is wrong.
"""

import ctypes
import json
import os
import sys

import cuda.bindings
import numpy as np
from cuda.bindings import driver as cu
from meeting import meet

N = 50_000
BYTES = 4 * N
CAPTURE = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL


def ok(result):
    """Takes what a call returned apart; its status must be success."""
    status, *values = result
    if status != cu.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{status!r}")
    return values[0] if len(values) == 1 else values


class Sum:
    """c = a + b in device memory, by whatever way the arrays were allocated."""

    def __init__(self, kernels, device):
        self.device = device
        with open(os.path.join(kernels, "vec_add_f32.ptx"), "rb") as f:
            ptx = f.read() + b"\0"
        self.module = ok(cu.cuModuleLoadData(ptx))
        self.function = ok(cu.cuModuleGetFunction(self.module, b"vec_add_f32"))
        self.library = ok(cu.cuLibraryLoadData(ptx, [], [], 0, [], [], 0))
        self.kernel = ok(cu.cuLibraryGetKernel(self.library, b"vec_add_f32"))
        self.stream = ok(cu.cuStreamCreate(cu.CUstream_flags.CU_STREAM_NON_BLOCKING))
        self.a = np.arange(N, dtype=np.float32)
        self.b = np.empty(N, dtype=np.float32)
        self.c = np.empty(N, dtype=np.float32)

    def arguments(self, a, b, c):
        return (int(a), int(b), int(c), N), (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32)

    def submit(self, a, b, c, function=None):
        """Copies in, adds, copies out: four submissions, or four nodes."""
        ok(cu.cuMemcpyHtoDAsync(a, self.a.ctypes.data, BYTES, self.stream))
        ok(cu.cuMemcpyHtoDAsync(b, self.b.ctypes.data, BYTES, self.stream))
        ok(cu.cuLaunchKernel(function or self.function, (N + 255) // 256, 1, 1, 256, 1, 1, 0, self.stream, self.arguments(a, b, c), 0))
        ok(cu.cuMemcpyDtoHAsync(self.c.ctypes.data, c, BYTES, self.stream))

    def check(self, way):
        ok(cu.cuStreamSynchronize(self.stream))
        if not np.array_equal(self.c, self.a + self.b):
            sys.exit(f"{way}: the sum is wrong")
        self.c.fill(-1)


def plain(s):
    """Plain allocations, and events around the work."""
    begin, end = ok(cu.cuEventCreate(0)), ok(cu.cuEventCreate(0))
    arrays = [ok(cu.cuMemAlloc(BYTES)) for _ in range(3)]
    ok(cu.cuEventRecord(begin, s.stream))
    s.submit(*arrays)
    ok(cu.cuEventRecord(end, s.stream))
    ok(cu.cuEventSynchronize(end))
    if ok(cu.cuEventElapsedTime(begin, end)) < 0:
        sys.exit("time runs backwards")
    s.check("plain")
    for array in arrays:
        ok(cu.cuMemFree(array))
    for event in (begin, end):
        ok(cu.cuEventDestroy(event))


def captured(s):
    """The work captured into a graph with the kernel of a library, launched twice."""
    arrays = [ok(cu.cuMemAlloc(BYTES)) for _ in range(3)]
    ok(cu.cuStreamBeginCapture(s.stream, CAPTURE))
    s.submit(*arrays, function=cu.CUfunction(int(s.kernel)))
    graph = ok(cu.cuStreamEndCapture(s.stream))
    _, count = ok(cu.cuGraphGetNodes(graph, 0))
    if count != 4:
        sys.exit(f"the captured graph has {count} nodes")
    run = ok(cu.cuGraphInstantiate(graph, 0))
    for _ in range(2):
        ok(cu.cuGraphLaunch(run, s.stream))
        s.check("captured")
    ok(cu.cuGraphExecDestroy(run))
    ok(cu.cuGraphDestroy(graph))
    for array in arrays:
        ok(cu.cuMemFree(array))


def built(s):
    """A graph built of nodes: it sets b, adds, and is changed to set another b."""
    arrays = a, b, c = [ok(cu.cuMemAlloc(BYTES)) for _ in range(3)]
    ok(cu.cuMemcpyHtoD(a, s.a.ctypes.data, BYTES))
    context = ok(cu.cuCtxGetCurrent())
    graph = ok(cu.cuGraphCreate(0))
    fill = cu.CUDA_MEMSET_NODE_PARAMS()
    fill.dst, fill.elementSize, fill.width, fill.height = b, 4, N, 1
    fill.value = int(np.float32(3).view(np.uint32))
    first = ok(cu.cuGraphAddMemsetNode(graph, None, 0, fill, context))
    add = cu.CUDA_KERNEL_NODE_PARAMS()
    add.func = s.function
    add.gridDimX, add.gridDimY, add.gridDimZ = (N + 255) // 256, 1, 1
    add.blockDimX, add.blockDimY, add.blockDimZ = 256, 1, 1
    add.kernelParams = s.arguments(a, b, c)
    ok(cu.cuGraphAddKernelNode(graph, [first], 1, add))
    run = ok(cu.cuGraphInstantiate(graph, 0))
    for value in (3, 5):
        if value != 3:
            fill.value = int(np.float32(value).view(np.uint32))
            ok(cu.cuGraphExecMemsetNodeSetParams(run, first, fill, context))
        ok(cu.cuGraphLaunch(run, s.stream))
        ok(cu.cuMemcpyDtoHAsync(s.c.ctypes.data, c, BYTES, s.stream))
        s.b.fill(value)
        s.check("built")
    ok(cu.cuGraphExecDestroy(run))
    ok(cu.cuGraphDestroy(graph))
    for array in arrays:
        ok(cu.cuMemFree(array))


def pooled(s):
    """Stream-ordered memory of a pool of its own."""
    of = cu.CUmemPoolProps()
    of.allocType = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    of.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    of.location.id = int(s.device)
    pool = ok(cu.cuMemPoolCreate(of))
    arrays = [ok(cu.cuMemAllocFromPoolAsync(BYTES, pool, s.stream)) for _ in range(3)]
    s.submit(*arrays)
    for array in arrays:
        ok(cu.cuMemFreeAsync(array, s.stream))
    s.check("pooled")
    ok(cu.cuMemPoolDestroy(pool))


def mapped(s):
    """Physical memory, mapped at an address that was reserved."""
    of = cu.CUmemAllocationProp()
    of.type = cu.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
    of.location.type = cu.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
    of.location.id = int(s.device)
    unit = ok(cu.cuMemGetAllocationGranularity(of, cu.CUmemAllocationGranularity_flags.CU_MEM_ALLOC_GRANULARITY_MINIMUM))
    size = (3 * BYTES + unit - 1) // unit * unit
    where = ok(cu.cuMemAddressReserve(size, 0, 0, 0))
    memory = ok(cu.cuMemCreate(size, of, 0))
    ok(cu.cuMemMap(where, size, 0, memory, 0))
    access = cu.CUmemAccessDesc()
    access.location = of.location
    access.flags = cu.CUmemAccess_flags.CU_MEM_ACCESS_FLAGS_PROT_READWRITE
    ok(cu.cuMemSetAccess(where, size, [access], 1))
    s.submit(*(cu.CUdeviceptr(int(where) + i * BYTES) for i in range(3)))
    s.check("mapped")
    ok(cu.cuMemUnmap(where, size))
    ok(cu.cuMemRelease(memory))
    ok(cu.cuMemAddressFree(where, size))


def main():
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    ok(cu.cuInit(0))
    device = ok(cu.cuDeviceGet(0))
    context = ok(cu.cuDevicePrimaryCtxRetain(device))
    ok(cu.cuCtxSetCurrent(context))
    s = Sum(sys.argv[1], device)
    for i in range(rounds):
        if i in (0, rounds // 2):
            meet()
        s.b.fill(i)
        for way in (plain, captured, pooled, mapped, built):
            way(s)
    ok(cu.cuLibraryUnload(s.library))
    ok(cu.cuModuleUnload(s.module))
    ok(cu.cuDevicePrimaryCtxRelease(device))
    print(json.dumps({"program": "cuda-bindings", "version": cuda.bindings.__version__, "ok": True, "rounds": rounds,
                      "devices": ok(cu.cuDeviceGetCount())}))


main()
