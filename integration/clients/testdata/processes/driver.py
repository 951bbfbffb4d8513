# SPDX-License-Identifier: Apache-2.0
"""The driver API by ctypes, as far as the programs of this folder need it."""

import ctypes
import os
import tempfile
import time
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_void_p

MEETING = os.environ.get("MEETING", "/meeting")
SUMS = 40
KERNEL = os.path.join(os.path.dirname(os.path.abspath(__file__)), "vec_add_f32.ptx")
N = 20_000

# Loaded with this module, before any fork; nothing of it is called yet.
cuda = ctypes.CDLL("libcuda.so.1")


class Failed(Exception):
    """A call of the driver, and its error."""


def call(name, *args):
    result = getattr(cuda, name)(*args)
    if result != 0:
        raise Failed(f"{name}: error {result}")


class Adder:
    """Initialises CUDA, and adds vectors; every element is checked."""

    def __init__(self):
        device, module = c_int(), c_void_p()
        self.context, self.function, self.stream = c_void_p(), c_void_p(), c_void_p()
        call("cuInit", 0)
        call("cuDeviceGet", byref(device), 0)
        call("cuDevicePrimaryCtxRetain", byref(self.context), device)
        call("cuCtxSetCurrent", self.context)
        with open(KERNEL, "rb") as f:
            call("cuModuleLoadData", byref(module), c_char_p(f.read()))
        call("cuModuleGetFunction", byref(self.function), module, b"vec_add_f32")
        call("cuStreamCreate", byref(self.stream), 1)
        self.size = c_size_t(4 * N)
        self.device = []
        for _ in range(3):
            p = c_void_p()
            call("cuMemAlloc_v2", byref(p), self.size)
            self.device.append(p)
        self.sums = 0

    def add(self):
        a, b, out = self.device
        host = (ctypes.c_float * N)(*range(N))
        one = ctypes.c_float(self.sums % 1000)
        bits = ctypes.c_uint.from_buffer(one)
        call("cuCtxSetCurrent", self.context)
        call("cuMemcpyHtoDAsync_v2", a, host, self.size, self.stream)
        call("cuMemsetD32Async", b, bits, c_size_t(N), self.stream)
        n = c_uint(N)
        params = (c_void_p * 4)(*(ctypes.addressof(x) for x in (a, b, out, n)))
        call("cuLaunchKernel", self.function, (N + 255) // 256, 1, 1, 256, 1, 1, 0,
             self.stream, params, None)
        call("cuMemcpyDtoHAsync_v2", host, out, self.size, self.stream)
        call("cuStreamSynchronize", self.stream)
        if any(host[i] != i + one.value for i in range(N)):
            raise Failed("a sum is wrong")
        self.sums += 1

    def run(self):
        """SUMS sums: the first, then the others when all have come to the meeting."""
        self.add()
        leave_word()
        while not os.path.exists(MEETING + "/now"):
            time.sleep(0.002)
        while self.sums < SUMS:
            self.add()


def leave_word():
    """Says that this process has computed."""
    os.close(tempfile.mkstemp(dir=MEETING)[0])
