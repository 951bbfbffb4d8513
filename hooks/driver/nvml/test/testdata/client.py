# SPDX-License-Identifier: Apache-2.0
# A monitor as people write them, with NVIDIA's own Python client.
import os

import pynvml as n

n.nvmlInit()
print("count", n.nvmlDeviceGetCount())
h = n.nvmlDeviceGetHandleByIndex(0)
print("name", n.nvmlDeviceGetName(h))
m = n.nvmlDeviceGetMemoryInfo(h)
print("memory", m.total, m.used, m.free)
m = n.nvmlDeviceGetMemoryInfo(h, version=n.nvmlMemory_v2)
print("memory v2", m.total, m.used, m.free, m.reserved)
print("use", n.nvmlDeviceGetUtilizationRates(h).gpu)
for p in n.nvmlDeviceGetComputeRunningProcesses(h):
    print("process", p.pid, p.usedGpuMemory, n.nvmlSystemGetProcessName(p.pid) != "")
assert n.nvmlDeviceGetGraphicsRunningProcesses(h) == []
assert n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(n.nvmlDeviceGetUUID(h))) == 0
for refuse, error in (
    (lambda: n.nvmlDeviceSetPersistenceMode(h, 1), n.NVMLError_NoPermission),
    (lambda: n.nvmlDeviceSetPowerManagementLimit(h, 1), n.NVMLError_NoPermission),
    (lambda: n.nvmlDeviceGetProcessUtilization(h, 0), n.NVMLError_NotSupported),
    (lambda: n.nvmlDeviceGetHandleByIndex(1), n.NVMLError_InvalidArgument),
):
    try:
        refuse()
    except error:
        continue
    raise SystemExit("not refused")
n.nvmlShutdown()
print("done")
