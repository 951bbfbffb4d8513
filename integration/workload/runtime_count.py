# SPDX-License-Identifier: Apache-2.0
"""CUDA's runtime, which cuda-bindings carries with it, asks for the devices.

Prints one line of JSON: what it got.
"""

import json

import cuda.bindings
from cuda.bindings import runtime

status, count = runtime.cudaGetDeviceCount()
print(json.dumps({"version": cuda.bindings.__version__, "status": status.name, "count": count}))
