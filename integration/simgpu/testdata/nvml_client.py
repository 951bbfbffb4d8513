# SPDX-License-Identifier: Apache-2.0
"""What a lister asks of NVML, through nvidia-ml-py."""

import pynvml as n

n.nvmlInit()
print("driver", n.nvmlSystemGetDriverVersion())
for i in range(n.nvmlDeviceGetCount()):
    d = n.nvmlDeviceGetHandleByIndex(i)
    print(
        "%s %s: %d C, %d of %d W, P%d, bus width %d, x%d"
        % (
            n.nvmlDeviceGetName(d),
            n.nvmlDeviceGetUUID(d),
            n.nvmlDeviceGetTemperature(d, n.NVML_TEMPERATURE_GPU),
            n.nvmlDeviceGetPowerUsage(d) / 1000,
            n.nvmlDeviceGetEnforcedPowerLimit(d) / 1000,
            n.nvmlDeviceGetPerformanceState(d),
            n.nvmlDeviceGetMemoryBusWidth(d),
            n.nvmlDeviceGetCurrPcieLinkWidth(d),
        )
    )
    assert n.nvmlDeviceGetClockInfo(d, n.NVML_CLOCK_SM) <= n.nvmlDeviceGetMaxClockInfo(d, n.NVML_CLOCK_SM)
    assert n.nvmlDeviceGetHandleBySerial(n.nvmlDeviceGetSerial(d)).contents is not None
    assert any(n.nvmlDeviceGetCpuAffinity(d, 16))
    for p in n.nvmlDeviceGetComputeRunningProcesses(d):
        print("process", p.pid, p.usedGpuMemory)
a, b = (n.nvmlDeviceGetHandleByIndex(i) for i in range(2))
assert n.nvmlDeviceGetTopologyCommonAncestor(a, b) == n.NVML_TOPOLOGY_HOSTBRIDGE
# The names for the indices are tuples in nvidia-ml-py 13: read 0, NVLink 2.
assert n.nvmlDeviceGetP2PStatus(a, b, 0) == n.NVML_P2P_STATUS_OK
assert n.nvmlDeviceGetP2PStatus(a, b, 2) == n.NVML_P2P_STATUS_NOT_SUPPORTED
n.nvmlShutdown()
