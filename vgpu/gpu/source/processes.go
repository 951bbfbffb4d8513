// SPDX-License-Identifier: Apache-2.0

package source

import (
	"fmt"
	"math"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/vgpu-shim/vgpu/vgpu/gpu"
)

// usedNotAvailable is what NVML says where the operating system, not the driver,
// manages the memory (NVML_VALUE_NOT_AVAILABLE of nvml.h).
const usedNotAvailable = math.MaxUint64

func (i *inventory) Processes(uuid string) (map[int]uint64, error) {
	n := slices.IndexFunc(i.gpus, func(g gpu.GPU) bool { return g.UUID == uuid })
	if n < 0 {
		return nil, fmt.Errorf("there is no GPU %s", uuid)
	}
	if !i.calls.begin() {
		return nil, fmt.Errorf("failed to list the processes on %s: %w", uuid, errClosed)
	}
	defer i.calls.end()
	d := i.devices[n]
	all := make(map[int]uint64)
	for function, list := range map[string]func() ([]nvml.ProcessInfo, nvml.Return){
		"nvmlDeviceGetComputeRunningProcesses":  d.GetComputeRunningProcesses,
		"nvmlDeviceGetGraphicsRunningProcesses": d.GetGraphicsRunningProcesses,
	} {
		if !i.has(function) {
			continue
		}
		found, ret := list()
		if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_FUNCTION_NOT_FOUND {
			continue
		}
		if ret != nvml.SUCCESS {
			return nil, fmt.Errorf("failed to list the processes on %s: %s: %w", uuid, function, ret)
		}
		for _, p := range found {
			used := p.UsedGpuMemory
			if used == usedNotAvailable {
				used = 0
			}
			// One that computes and draws is in both lists, with the same number.
			all[int(p.Pid)] = max(all[int(p.Pid)], used)
		}
	}
	return all, nil
}
