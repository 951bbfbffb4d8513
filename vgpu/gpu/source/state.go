// SPDX-License-Identifier: Apache-2.0

package source

import (
	"fmt"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/vgpu-shim/vgpu/vgpu/gpu"
)

// reading is what NVML said of a GPU at one look. What it can not say is zero.
type reading struct {
	lost string // why the GPU can not be reached; all else is then of before
	mode nvml.ComputeMode
	mig  bool
	mps  bool
	// recovery is what the driver says must be done to make the GPU well again
	// (nvmlDeviceGpuRecoveryAction_t), from R565 on.
	recovery nvml.DeviceGpuRecoveryAction
	remap    remap
	// retirementPending: a memory page waits for it, on GPUs before Ampere.
	retirementPending bool
	uncorrected       uint64 // ECC errors since the driver was loaded
	clocks            uint64 // why they are held down: nvmlClocksEventReason bits
}

// remap is about memory rows, from Ampere on: whether a remap failed some time in
// the GPU's life, and whether one waits for the next reset. "A pending remapping
// won't affect future work on the GPU" (nvml.h).
type remap struct{ failed, pending bool }

// state is what is known of a GPU.
type state struct {
	reading reading
	// xid is a critical one that was not overcome. It stays until the GPU was
	// seen lost or in need of a reset and then, at a later look, well: so a reset
	// looks from here. Or until vgpud starts anew: to reset a GPU, all that have
	// it open must end, and vgpud has. An Xid alone says nothing of its end.
	xid  uint64
	away bool // since the Xid the GPU was seen lost or in need of a reset
	// silent: the driver does not answer for this GPU.
	silent bool
}

// needsReset: the GPU is not there, or the driver wants it reset.
func (r reading) needsReset() bool {
	return r.lost != "" || recoveries[r.recovery].down
}

// recoveries are what the driver may want, nvml.h's nvmlDeviceGpuRecoveryAction_t.
// Drain P2P and "drain and reset" let what runs go on; see
// https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt/error-recovery-and-response-flags.html
// and the Xid catalogue on link fatal errors.
var recoveries = map[nvml.DeviceGpuRecoveryAction]struct {
	want         string
	down, cordon bool
}{
	nvml.GPU_RECOVERY_ACTION_GPU_RESET:           {want: "the GPU to be reset", down: true},
	nvml.GPU_RECOVERY_ACTION_NODE_REBOOT:         {want: "the node to be rebooted", down: true},
	nvml.GPU_RECOVERY_ACTION_DRAIN_P2P:           {want: "peer-to-peer traffic to be drained", cordon: true},
	nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET:     {want: "the GPU to be drained and reset", cordon: true},
	nvml.GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN: {want: "the IMEX domain to be recovered"},
	nvml.GPU_RECOVERY_ACTION_BUS_RESET:           {want: "the GPU's PCIe bus to be reset", down: true},
	nvml.GPU_RECOVERY_ACTION_SYSTEM_REBOOT:       {want: "the system to be rebooted", down: true},
}

// slowdowns are the reasons for low clocks that somebody should look into.
// Others come and go with the load: idle, power cap, settings.
var slowdowns = []struct {
	bit  uint64
	name string
}{
	{nvml.ClocksThrottleReasonHwSlowdown, "hardware slowdown"},
	{nvml.ClocksEventReasonSwThermalSlowdown, "thermal slowdown by software"},
	{nvml.ClocksThrottleReasonHwThermalSlowdown, "thermal slowdown by hardware"},
	{nvml.ClocksThrottleReasonHwPowerBrakeSlowdown, "power brake"},
}

// looked is the state after a look.
func (s state) looked(r reading) state {
	s.reading, s.silent = r, false
	switch {
	case s.xid == 0:
	case r.needsReset():
		s.away = true
	case s.away:
		s.xid, s.away = 0, false
	}
	return s
}

// struck is the state after an Xid. Of several critical ones the first counts:
// the others follow from it.
func (s state) struck(number uint64) state {
	if xids[number].critical && s.xid == 0 {
		s.xid, s.away = number, s.reading.needsReset()
	}
	return s
}

// health says what the state means.
func (s state) health(uuid string) gpu.Health {
	h := gpu.Health{UUID: uuid}
	r := s.reading
	var down, cordon []string
	if s.silent {
		cordon = append(cordon, "the driver does not answer for this GPU")
	}
	if r.lost != "" {
		h.Down, h.Cordon = r.lost, strings.Join(cordon, "; ")
		return h
	}
	when := func(holds bool, list *[]string, why string) {
		if holds {
			*list = append(*list, why)
		}
	}
	want := recoveries[r.recovery]
	when(s.xid != 0, &down, xidText(s.xid))
	when(want.down, &down, "the driver wants "+want.want)
	when(r.remap.failed, &down, "a bad memory row could not be remapped")
	when(r.retirementPending && r.uncorrected > 0, &down, "a memory page with an uncorrectable error waits for its retirement by a reset")

	when(want.cordon, &cordon, "the driver wants "+want.want)
	when(r.mode == nvml.COMPUTEMODE_PROHIBITED, &cordon, "its compute mode is PROHIBITED")
	when(r.mode == nvml.COMPUTEMODE_EXCLUSIVE_PROCESS, &cordon, "its compute mode is EXCLUSIVE_PROCESS")
	when(r.mode == nvml.COMPUTEMODE_EXCLUSIVE_THREAD, &cordon, "its compute mode is EXCLUSIVE_THREAD")
	when(r.mig, &cordon, "MIG is enabled; its instances are not configured as GPUs")
	when(r.mps, &cordon, "MPS is active on it")

	when(want.want != "" && !want.down && !want.cordon, &h.Notes, "the driver wants "+want.want)
	when(r.remap.pending, &h.Notes, "a memory row is remapped at the next reset")
	when(r.retirementPending && r.uncorrected == 0, &h.Notes, "a memory page is retired at the next reset")
	when(r.uncorrected > 0, &h.Notes, fmt.Sprintf("uncorrectable ECC errors since the driver was loaded: %d", r.uncorrected))
	for _, slow := range slowdowns {
		when(r.clocks&slow.bit != 0, &h.Notes, "clocks are held down: "+slow.name)
	}
	h.Down, h.Cordon = strings.Join(down, "; "), strings.Join(cordon, "; ")
	return h
}

func xidText(number uint64) string {
	x, known := xids[number]
	if !known {
		return fmt.Sprintf("Xid %d", number)
	}
	return fmt.Sprintf("Xid %d: %s", number, x.name)
}
