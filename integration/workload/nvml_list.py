# SPDX-License-Identifier: Apache-2.0
"""Lists GPUs and their processes by one of NVIDIA's packages for NVML.

    python3 nvml_list.py pynvml|bindings

Prints one line of JSON.
"""

import importlib.metadata
import json
import sys


def by_pynvml():
    """nvidia-ml-py."""
    import pynvml as n

    n.nvmlInit()
    for i in range(n.nvmlDeviceGetCount()):
        d = n.nvmlDeviceGetHandleByIndex(i)
        yield {"uuid": n.nvmlDeviceGetUUID(d), "name": n.nvmlDeviceGetName(d), "memory": n.nvmlDeviceGetMemoryInfo(d).total,
               "processes": [p.pid for p in n.nvmlDeviceGetComputeRunningProcesses(d)]}
    n.nvmlShutdown()


def by_bindings():
    """The NVML of cuda-bindings."""
    from cuda.bindings import nvml as n

    n.init_v2()
    for i in range(n.device_get_count_v2()):
        d = n.device_get_handle_by_index_v2(i)
        yield {"uuid": n.device_get_uuid(d), "name": n.device_get_name(d), "memory": n.device_get_memory_info_v2(d).total,
               "processes": [p.pid for p in n.device_get_compute_running_processes_v3(d)]}
    n.shutdown()


package, gpus = {"pynvml": ("nvidia-ml-py", by_pynvml), "bindings": ("cuda-bindings", by_bindings)}[sys.argv[1]]
print(json.dumps({"version": importlib.metadata.version(package), "gpus": list(gpus())}))
