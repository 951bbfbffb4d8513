// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/vgpu-shim/vgpu/vgpu/gpu"
)

// pollInterval is how often all GPUs are looked at. What NVML tells as an event is
// seen at once.
const pollInterval = 5 * time.Second

func (i *inventory) Watch(ctx context.Context, changes chan<- gpu.Health) {
	ticker := time.NewTicker(i.poll)
	defer ticker.Stop()
	var uuids []string
	for _, g := range i.gpus {
		uuids = append(uuids, g.UUID)
	}
	watch(ctx, i, uuids, i.patience, ticker.C, changes)
}

var errClosed = errors.New("NVML is closed")

func (i *inventory) Free(uuid string) (uint64, error) {
	n := slices.IndexFunc(i.gpus, func(g gpu.GPU) bool { return g.UUID == uuid })
	if n < 0 {
		return 0, fmt.Errorf("there is no GPU %s", uuid)
	}
	if !i.calls.begin() {
		return 0, fmt.Errorf("failed to read the free memory of %s: %w", uuid, errClosed)
	}
	defer i.calls.end()
	d := i.devices[n]
	ret := nvml.ERROR_FUNCTION_NOT_FOUND
	if i.has("nvmlDeviceGetMemoryInfo_v2") {
		var m nvml.Memory_v2
		if m, ret = d.GetMemoryInfo_v2(); ret == nvml.SUCCESS {
			return m.Free, nil
		}
	}
	// A library that knows the second version may belong to a driver that does not.
	if ret == nvml.ERROR_FUNCTION_NOT_FOUND || ret == nvml.ERROR_ARGUMENT_VERSION_MISMATCH {
		var m nvml.Memory
		if m, ret = d.GetMemoryInfo(); ret == nvml.SUCCESS {
			return m.Free, nil
		}
	}
	return 0, fmt.Errorf("failed to read the free memory of %s: %w", uuid, ret)
}

// look implements prober.
func (i *inventory) look(n int, before reading) reading {
	if !i.calls.begin() {
		return before
	}
	defer i.calls.end()
	d, r := i.devices[n], before
	r.lost = ""
	read(i, &r, "nvmlDeviceGetComputeMode", &r.mode, d.GetComputeMode)
	read(i, &r, "nvmlDeviceGetMigMode", &r.mig, func() (bool, nvml.Return) {
		current, _, ret := d.GetMigMode()
		return current == nvml.DEVICE_MIG_ENABLE, ret
	})
	read(i, &r, "nvmlDeviceGetComputeRunningProcesses", &r.mps, func() (bool, nvml.Return) { return i.mps(d) })
	read(i, &r, "nvmlDeviceGetFieldValues", &r.recovery, func() (nvml.DeviceGpuRecoveryAction, nvml.Return) { return recovery(d) })
	read(i, &r, "nvmlDeviceGetRemappedRows", &r.remap, func() (remap, nvml.Return) {
		_, _, pending, failed, ret := d.GetRemappedRows()
		return remap{failed: failed, pending: pending}, ret
	})
	read(i, &r, "nvmlDeviceGetRetiredPagesPendingStatus", &r.retirementPending, func() (bool, nvml.Return) {
		pending, ret := d.GetRetiredPagesPendingStatus()
		return pending == nvml.FEATURE_ENABLED, ret
	})
	read(i, &r, "nvmlDeviceGetTotalEccErrors", &r.uncorrected, func() (uint64, nvml.Return) {
		return d.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
	})
	if i.has("nvmlDeviceGetCurrentClocksEventReasons") {
		read(i, &r, "nvmlDeviceGetCurrentClocksEventReasons", &r.clocks, d.GetCurrentClocksEventReasons)
	} else { // its name before R535
		read(i, &r, "nvmlDeviceGetCurrentClocksThrottleReasons", &r.clocks, d.GetCurrentClocksThrottleReasons)
	}
	if r.lost == "" && i.unheard[n].Swap(false) {
		select {
		case i.back <- struct{}{}:
		default: // it is known already
		}
	}
	return r
}

// read asks NVML for one thing. What this GPU or driver does not know is zero;
// what fails for once stays as it was. A lost GPU is not asked further.
func read[T any](i *inventory, r *reading, function string, field *T, call func() (T, nvml.Return)) {
	if r.lost != "" || !i.has(function) {
		return
	}
	value, ret := call()
	switch ret {
	case nvml.SUCCESS:
		*field = value
	case nvml.ERROR_NOT_SUPPORTED, nvml.ERROR_FUNCTION_NOT_FOUND:
		var zero T
		*field = zero
	case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_GPU_NOT_FOUND, nvml.ERROR_RESET_REQUIRED:
		r.lost = "NVML does not reach it: " + ret.Error()
	}
}

func recovery(d nvml.Device) (nvml.DeviceGpuRecoveryAction, nvml.Return) {
	v := []nvml.FieldValue{{FieldId: nvml.FI_DEV_GET_GPU_RECOVERY_ACTION}}
	if ret := d.GetFieldValues(v); ret != nvml.SUCCESS {
		return 0, ret
	}
	if ret := nvml.Return(v[0].NvmlReturn); ret == nvml.ERROR_INVALID_ARGUMENT {
		return 0, nvml.ERROR_NOT_SUPPORTED // a field that a driver before R565 has never heard of
	} else if ret != nvml.SUCCESS {
		return 0, ret
	}
	return nvml.DeviceGpuRecoveryAction(binary.NativeEndian.Uint32(v[0].Value[:])), nvml.SUCCESS
}

// mps says whether MPS is in use on a GPU. Where the driver lists the processes
// with an MPS context (Volta and newer, says nvml.h) its word is all that counts.
// Before, only the server's context is seen ("nvidia-cuda-mps-server will appear
// as the active CUDA process", https://docs.nvidia.com/deploy/topics/topic_5_1_2.html),
// and a process could bear that name in vain.
//
// Not seen: a control daemon that nobody has connected to. It has nothing on any
// GPU, and a container can reach it only if it was given its pipe directory.
func (i *inventory) mps(d nvml.Device) (bool, nvml.Return) {
	if i.has("nvmlDeviceGetMPSComputeRunningProcesses") {
		clients, ret := d.GetMPSComputeRunningProcesses()
		if ret != nvml.ERROR_NOT_SUPPORTED {
			return len(clients) > 0, ret
		}
	}
	all, ret := d.GetComputeRunningProcesses()
	if ret != nvml.SUCCESS || !i.has("nvmlSystemGetProcessName") {
		return false, ret
	}
	return slices.ContainsFunc(all, func(p nvml.ProcessInfo) bool {
		name, ret := i.lib.SystemGetProcessName(int(p.Pid))
		return ret == nvml.SUCCESS && strings.Contains(name, "nvidia-cuda-mps-server")
	}), nvml.SUCCESS
}
