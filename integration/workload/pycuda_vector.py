# SPDX-License-Identifier: Apache-2.0
"""A CUDA client that nobody here wrote: pycuda, whose extension module is linked
with libcuda. Its own kernels are not used: they need NVIDIA's compiler.

    python3 pycuda_vector.py VEC_ADD_F32.ptx [ROUNDS]

Prints one line of JSON; ends with an error if a value is wrong.
"""

import json
import sys

import numpy as np
import pycuda
import pycuda.autoinit  # makes a context, and ends it at exit
import pycuda.driver as cuda
from meeting import meet
from pycuda import gpuarray, tools

N = 50_000


def main():
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    with open(sys.argv[1], "rb") as f:
        module = cuda.module_from_buffer(f.read() + b"\0")
    add = module.get_function("vec_add_f32")
    add.prepare("PPPI")
    stream = cuda.Stream()
    pool = tools.DeviceMemoryPool()
    page_locked = cuda.pagelocked_empty(N, np.float32)
    for i in range(rounds):
        if i in (0, rounds // 2):
            meet()
        a = np.arange(N, dtype=np.float32)
        begin, end = cuda.Event(), cuda.Event()
        begin.record(stream)
        # Arrays of a pool, and set with a value instead of copied.
        da = gpuarray.to_gpu_async(a, allocator=pool.allocate, stream=stream)
        db = gpuarray.empty(N, np.float32, allocator=pool.allocate)
        cuda.memset_d32_async(db.gpudata, int(np.float32(i).view(np.uint32)), N, stream)
        dc = gpuarray.empty_like(da)
        add.prepared_async_call(((N + 255) // 256, 1), (256, 1, 1), stream, da.gpudata, db.gpudata, dc.gpudata, N)
        cuda.memcpy_dtoh_async(page_locked, dc.gpudata, stream)
        end.record(stream)
        end.synchronize()
        if not np.array_equal(page_locked, a + np.float32(i)):
            sys.exit(f"round {i}: the sum is wrong")
        if end.time_since(begin) < 0:
            sys.exit(f"round {i}: time runs backwards")
        # Inside the device, by lines, and back to the start.
        copy = dc.copy()
        if not np.array_equal(copy.get(), page_locked):
            sys.exit(f"round {i}: a copy there and back is wrong")
        square = np.empty((N // 100, 50), np.float32)
        lines = cuda.Memcpy2D()
        lines.set_src_device(copy.gpudata)
        lines.set_dst_host(square)
        lines.src_pitch, lines.dst_pitch, lines.width_in_bytes, lines.height = 400, 200, 200, N // 100
        lines(aligned=False)
        if not np.array_equal(square, page_locked.reshape(N // 100, 100)[:, :50]):
            sys.exit(f"round {i}: a copy of lines is wrong")
    name, devices = cuda.Device(0).name(), cuda.Device.count()
    da = db = dc = copy = None
    pool.stop_holding()
    print(json.dumps({"program": "pycuda", "version": pycuda.VERSION_TEXT, "ok": True, "rounds": rounds,
                      "devices": devices, "name": name}))


main()
