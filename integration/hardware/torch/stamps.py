# SPDX-License-Identifier: Apache-2.0
"""The log of the kernel "stamp" (../../kernels/stamp.ptx), by the driver API alone.

It launches in whatever context is current and on whatever stream it is given, so that
a framework's own work can be stamped where it is submitted.
"""
import ctypes
import time

HEAD, PAIR = 16, 16
_driver = ctypes.CDLL("libcuda.so.1")


def call(name, *args):
    """Calls a function of the driver; what it does not do is an error."""
    result = getattr(_driver, name)(*args)
    if result != 0:
        raise RuntimeError(f"{name}: error {result}")


def open_device():
    """Takes device 0 with its primary context, as a framework does."""
    device, context = ctypes.c_int(), ctypes.c_void_p()
    call("cuInit", ctypes.c_uint(0))
    call("cuDeviceGet", ctypes.byref(device), ctypes.c_int(0))
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
    call("cuCtxSetCurrent", context)


def load(kernels):
    """The kernel, in the current context."""
    module, function = ctypes.c_void_p(), ctypes.c_void_p()
    with open(kernels + "/stamp.ptx", "rb") as f:
        text = f.read()
    call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(text))
    call("cuModuleGetFunction", ctypes.byref(function), module, b"stamp")
    return function


class Stamps:
    def __init__(self, function, capacity):
        self.function, self.capacity = function, capacity
        self.log = ctypes.c_uint64()
        call("cuMemAlloc_v2", ctypes.byref(self.log), ctypes.c_size_t(HEAD + PAIR * capacity))
        call("cuMemsetD8_v2", self.log, ctypes.c_ubyte(0), ctypes.c_size_t(HEAD))
        call("cuCtxSynchronize")
        # Kept: the driver reads the parameters by their addresses.
        self._capacity, self._loops = ctypes.c_uint32(capacity), ctypes.c_uint32(0)
        self._params = (ctypes.c_void_p * 3)(*(ctypes.addressof(v) for v in (self.log, self._capacity, self._loops)))

    def launch(self, stream=0, loops=0):
        self._loops.value = loops
        one = ctypes.c_uint(1)
        call("cuLaunchKernel", self.function, one, one, one, one, one, one, ctypes.c_uint(0),
             ctypes.c_void_p(stream), self._params, None)

    def read(self):
        """All pairs, and how many did not fit."""
        words = (ctypes.c_uint64 * ((HEAD + PAIR * self.capacity) // 8))()
        call("cuMemcpyDtoH_v2", words, self.log, ctypes.c_size_t(ctypes.sizeof(words)))
        n = min(words[0], self.capacity)
        return [(words[2 + 2 * i], words[3 + 2 * i]) for i in range(n)], words[0] - n


def say_clock(function, tries=20):
    """Prints an instant of both clocks, as ../programs/stamps.c does."""
    best = None
    for _ in range(tries):
        one = Stamps(function, 1)
        begin = time.monotonic_ns()
        one.launch()
        call("cuStreamSynchronize", ctypes.c_void_p(0))
        end = time.monotonic_ns()
        ((gpu, _),), _ = one.read()
        call("cuMemFree_v2", one.log)
        error = (end - begin) // 2
        if best is None or error < best[2]:
            best = (gpu, begin + error, error)
    print("clock %d %d %d" % best)
