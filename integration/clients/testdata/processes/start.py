# SPDX-License-Identifier: Apache-2.0
"""Python's multiprocessing after CUDA was used in the parent, by Debian's numba
and by ctypes.

    start.py fork|spawn|forkserver PROCESSES

A forked child asks the driver for this and that; others add vectors. The parent
does so, too. Ends with one line of JSON.
"""

import ctypes
import json
import multiprocessing
import os
import platform
import sys
from ctypes import byref

import driver

adder = None  # the parent's; a forked child has it, too


def answers(_):
    """What a process is told that was forked after its parent had used CUDA."""
    number, pointer = ctypes.c_int(), ctypes.c_void_p()
    buffer = ctypes.create_string_buffer(64)
    said = {name: getattr(driver.cuda, name)(*args) for name, *args in [
        ("cuInit", 0),
        ("cuDeviceGetCount", byref(number)),
        ("cuDeviceGet", byref(number), 0),
        ("cuCtxGetCurrent", byref(pointer)),
        ("cuCtxSetCurrent", adder.context),
        ("cuDevicePrimaryCtxRetain", byref(pointer), 0),
        ("cuMemAlloc_v2", byref(pointer), ctypes.c_size_t(64)),
        ("cuMemcpyHtoD_v2", adder.device[0], buffer, ctypes.c_size_t(64)),
        ("cuMemcpyHtoDAsync_v2", adder.device[0], buffer, ctypes.c_size_t(64), adder.stream),
        ("cuMemsetD32Async", adder.device[0], 0, ctypes.c_size_t(16), adder.stream),
        ("cuLaunchKernel", adder.function, 1, 1, 1, 1, 1, 1, 0, adder.stream, None, None),
        ("cuStreamQuery", adder.stream),
        ("cuStreamSynchronize", adder.stream),
        ("cuCtxSynchronize",),
    ]}
    from numba import cuda
    try:
        cuda.to_device(b"12345678")
        said["numba"] = "works"
    except Exception as e:  # whatever numba makes of it
        said["numba"] = f"{type(e).__name__}: {e}"
    return said


def add(_):
    driver.Adder().run()


def run(method, n):
    global adder
    from numba import cuda
    if cuda.to_device(bytearray(b"12345678")).copy_to_host().tobytes() != b"12345678":
        sys.exit("numba: a copy there and back is wrong")
    adder = driver.Adder()
    with multiprocessing.get_context(method).Pool(n) as pool:
        if method == "fork":
            adder.add()
            said = pool.map(answers, range(n), chunksize=1)
        else:
            children = pool.map_async(add, range(n), chunksize=1)
            adder.run()
            children.get()
            return {}
    if any(one != said[0] for one in said):
        sys.exit(f"the children were told different things: {said}")
    # One more, that ends as a program does, with all that is to be done then.
    child = os.fork()
    if child == 0:
        sys.exit()
    end = os.waitpid(child, 0)[1]
    adder.run()
    return {"children": said[0], "end": end}


if __name__ == "__main__":
    result = run(sys.argv[1], int(sys.argv[2]))
    print(json.dumps({"ok": True, "version": platform.python_version(), **result}))
