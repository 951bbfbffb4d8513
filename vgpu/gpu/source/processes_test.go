// SPDX-License-Identifier: Apache-2.0

package source

import (
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/go-cmp/cmp"

	"github.com/vgpu-shim/vgpu/vgpu/gpu"
)

// lists is an inventory of one GPU whose driver answers with these lists.
func lists(compute, graphics []nvml.ProcessInfo, ret nvml.Return) *inventory {
	d := &mock.Device{
		GetComputeRunningProcessesFunc:  func() ([]nvml.ProcessInfo, nvml.Return) { return compute, nvml.SUCCESS },
		GetGraphicsRunningProcessesFunc: func() ([]nvml.ProcessInfo, nvml.Return) { return graphics, ret },
	}
	return &inventory{
		gpus: []gpu.GPU{{UUID: "GPU-1"}}, devices: []nvml.Device{d},
		there: map[string]bool{"nvmlDeviceGetComputeRunningProcesses": true, "nvmlDeviceGetGraphicsRunningProcesses": true},
	}
}

func TestProcessesAreThoseOfBothLists(t *testing.T) {
	compute := []nvml.ProcessInfo{{Pid: 7, UsedGpuMemory: 100}, {Pid: 8, UsedGpuMemory: 200}, {Pid: 9, UsedGpuMemory: usedNotAvailable}}
	graphics := []nvml.ProcessInfo{{Pid: 8, UsedGpuMemory: 200}, {Pid: 10, UsedGpuMemory: 50}}
	got, err := lists(compute, graphics, nvml.SUCCESS).Processes("GPU-1")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[int]uint64{7: 100, 8: 200, 9: 0, 10: 50}, got); diff != "" {
		t.Fatalf("(-want +got)\n%s", diff)
	}
}

func TestAListThatTheDriverDoesNotHaveIsLeftOut(t *testing.T) {
	got, err := lists([]nvml.ProcessInfo{{Pid: 7, UsedGpuMemory: 100}}, nil, nvml.ERROR_NOT_SUPPORTED).Processes("GPU-1")
	if err != nil || got[7] != 100 {
		t.Fatalf("%v, %v", got, err)
	}
}

func TestAListThatFailsIsAnError(t *testing.T) {
	_, err := lists(nil, nil, nvml.ERROR_GPU_IS_LOST).Processes("GPU-1")
	if err == nil || !strings.Contains(err.Error(), "GPU-1") {
		t.Fatal(err)
	}
	if _, err := lists(nil, nil, nvml.SUCCESS).Processes("GPU-2"); err == nil {
		t.Fatal("a GPU that is not there has processes")
	}
}
