# SPDX-License-Identifier: Apache-2.0
"""A CUDA client that nobody here wrote: numba, or where it is there NVIDIA's
numba-cuda in its place, through whatever libcuda it finds. Device arrays, copies
both ways, streams, events, and a kernel loaded from PTX. Numba's own compiler is
not used: it needs NVIDIA's libNVVM.

    python3 numba_vector.py VEC_ADD_F32.ptx [ROUNDS]

Prints one line of JSON; ends with status 1 if a value is wrong.
"""

import ctypes
import json
import sys

import numpy as np
from meeting import meet
from numba import cuda
from numba.cuda.cudadrv import driver

N = 50_000
GRID, BLOCK = (N + 255) // 256, 256

if hasattr(driver, "launch_kernel"):
    from numba import __version__

    def launch(function, stream, values):
        driver.launch_kernel(function.handle, GRID, 1, 1, BLOCK, 1, 1, 0, stream.handle, values)
else:
    from cuda import core
    from numba_cuda import __version__

    def launch(function, stream, values):
        values = [v.value if isinstance(v, ctypes.c_void_p) else v for v in values]
        core.launch(core.Stream.from_handle(int(stream.handle)), core.LaunchConfig(grid=GRID, block=BLOCK),
                    function.kernel, *values)


def add(function, stream, a, b, c):
    """Launches vec_add_f32(a, b, c, N) on the stream."""
    values = [ctypes.c_void_p(x.device_ctypes_pointer.value) for x in (a, b, c)]
    values.append(ctypes.c_uint32(N))
    launch(function, stream, values)


def main():
    ptx = open(sys.argv[1], "rb").read() + b"\0"
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 5
    context = cuda.current_context()
    function = context.create_module_ptx(ptx).get_function("vec_add_f32")
    stream = cuda.stream()
    begin, end = cuda.event(), cuda.event()
    for i in range(rounds):
        if i in (0, rounds // 2):
            meet()
        a = np.arange(N, dtype=np.float32)
        b = np.full(N, i, dtype=np.float32)
        begin.record(stream)
        da = cuda.to_device(a, stream=stream)
        db = cuda.to_device(b, stream=stream)
        dc = cuda.device_array(N, dtype=np.float32, stream=stream)
        add(function, stream, da, db, dc)
        c = dc.copy_to_host(stream=stream)
        end.record(stream)
        end.synchronize()
        if not np.array_equal(c, a + b):
            sys.exit(f"round {i}: the sum is wrong")
        if cuda.event_elapsed_time(begin, end) < 0:
            sys.exit(f"round {i}: time runs backwards")
        # The default stream, and back to the start.
        if not np.array_equal(cuda.to_device(c).copy_to_host(), c):
            sys.exit(f"round {i}: a copy there and back is wrong")
    name = context.device.name
    print(json.dumps({"program": "numba", "version": __version__, "ok": True, "rounds": rounds,
                      "devices": len(cuda.gpus), "name": name if isinstance(name, str) else name.decode()}))


main()
