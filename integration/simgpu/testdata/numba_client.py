# SPDX-License-Identifier: Apache-2.0
"""A client that nobody here wrote: numba's CUDA driver layer, as Debian ships it.

usage: numba_client.py KERNELS. NUMBA_CUDA_DRIVER names the driver library.
"""
import ctypes
import os
import sys

import numpy as np
from numba import cuda
from numba.cuda.cudadrv import driver


def load(name):
    with open(os.path.join(sys.argv[1], name + ".ptx"), "rb") as f:
        ptx = f.read() + b"\0"
    return cuda.current_context().create_module_ptx(ptx).get_function(name)


def launch(function, grid, block, args, stream=None):
    driver.launch_kernel(
        function.handle, grid, 1, 1, block, 1, 1, 0, stream.handle.value if stream else None, args)


def pointer(array):
    return ctypes.c_void_p(array.device_ctypes_pointer.value)


def main():
    n = 10000
    a = np.arange(n, dtype=np.float32)
    b = np.full(n, 2, dtype=np.float32)

    stream = cuda.stream()
    da = cuda.to_device(a, stream=stream)
    db = cuda.to_device(b, stream=stream)
    dc = cuda.device_array(n, dtype=np.float32, stream=stream)
    start, end = cuda.event(), cuda.event()
    start.record(stream)
    launch(load("vec_add_f32"), n // 256 + 1, 256, [pointer(da), pointer(db), pointer(dc), ctypes.c_uint32(n)], stream)
    launch(load("spin_us"), 1, 1, [ctypes.c_uint32(5000)], stream)
    end.record(stream)
    c = dc.copy_to_host(stream=stream)
    stream.synchronize()
    end.synchronize()
    assert (c == a + b).all()
    assert end.query() and cuda.event_elapsed_time(start, end) >= 5.0

    # Slices, device-to-device, pinned and managed memory.
    half = da[: n // 2].copy_to_host()
    assert (half == a[: n // 2]).all()
    dd = cuda.device_array_like(da)
    dd.copy_to_device(da)
    assert (dd.copy_to_host() == a).all()
    with cuda.pinned(a):
        cuda.to_device(a, stream=stream)
        stream.synchronize()
    pinned = cuda.pinned_array(16, dtype=np.int32)
    pinned[:] = 7
    dp = cuda.to_device(pinned)
    assert (dp.copy_to_host() == 7).all()
    managed = cuda.managed_array(16, dtype=np.float32)
    managed[:] = 1
    cuda.synchronize()
    free, total = cuda.current_context().get_memory_info()
    assert 0 < free < total

    called = []
    stream.add_callback(lambda s, status, arg: called.append((status, arg)), 42)
    stream.synchronize()
    assert called == [(0, 42)], called

    # A module that has no body here says why.
    try:
        cuda.current_context().create_module_ptx(
            b".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry nobody() { ret; }\0")
        raise AssertionError("a module without a body was loaded")
    except driver.CudaAPIError as e:
        assert "no body for the entry 'nobody'" in str(e), e
    print("numba ok:", cuda.get_current_device().name.decode(), cuda.get_current_device().compute_capability)


main()
