# SPDX-License-Identifier: Apache-2.0
"""A process that makes a context on the first GPU, then has a child that holds all
its files, as a worker has that was started without closing them. The child is made
by the system call: no handler of the driver runs in it.

    forked.py stay|leave

Says "forked"; then the process stays, or ends and leaves its child, which has all
but its output. Both end when their input does.
"""
import ctypes
import os
import sys

cuda = ctypes.CDLL("libcuda.so.1")
context = ctypes.c_void_p()
for status in (cuda.cuInit(0), cuda.cuCtxCreate_v2(ctypes.byref(context), 0, 0)):
    if status:
        sys.exit(f"status {status}")
clone = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
SIGCHLD = 17
child = ctypes.CDLL(None).syscall(clone, SIGCHLD, 0, 0, 0, 0) == 0
if child:
    os.closerange(1, 3)
else:
    print("forked", flush=True)
if child or sys.argv[1] == "stay":
    os.read(0, 1)
os._exit(0)
