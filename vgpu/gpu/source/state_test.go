// SPDX-License-Identifier: Apache-2.0

package source

import (
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"github.com/vgpu-shim/vgpu/vgpu/gpu"
)

// What each reading means, one at a time and together.
func TestHealthOfAReading(t *testing.T) {
	for _, test := range []struct {
		description  string
		reading      reading
		down, cordon string
		notes        []string
	}{
		{description: "healthy"},
		{description: "lost", reading: reading{lost: "gone", mig: true}, down: "gone"},
		{
			description: "page retirement after an uncorrectable error", reading: reading{retirementPending: true, uncorrected: 2},
			down:  "a memory page with an uncorrectable error waits for its retirement by a reset",
			notes: []string{"uncorrectable ECC errors since the driver was loaded: 2"},
		},
		{
			description: "page retirement after corrected errors", reading: reading{retirementPending: true},
			notes: []string{"a memory page is retired at the next reset"},
		},
		{
			description: "an uncorrectable error alone", reading: reading{uncorrected: 1},
			notes: []string{"uncorrectable ECC errors since the driver was loaded: 1"},
		},
		{description: "failed remap", reading: reading{remap: remap{failed: true}}, down: "a bad memory row could not be remapped"},
		{description: "pending remap", reading: reading{remap: remap{pending: true}}, notes: []string{"a memory row is remapped at the next reset"}},
		{description: "reset", reading: reading{recovery: nvml.GPU_RECOVERY_ACTION_GPU_RESET}, down: "the driver wants the GPU to be reset"},
		{description: "reboot", reading: reading{recovery: nvml.GPU_RECOVERY_ACTION_NODE_REBOOT}, down: "the driver wants the node to be rebooted"},
		{description: "bus reset", reading: reading{recovery: nvml.GPU_RECOVERY_ACTION_BUS_RESET}, down: "the driver wants the GPU's PCIe bus to be reset"},
		{description: "drain", reading: reading{recovery: nvml.GPU_RECOVERY_ACTION_DRAIN_P2P}, cordon: "the driver wants peer-to-peer traffic to be drained"},
		{description: "drain and reset", reading: reading{recovery: nvml.GPU_RECOVERY_ACTION_DRAIN_AND_RESET}, cordon: "the driver wants the GPU to be drained and reset"},
		{description: "IMEX", reading: reading{recovery: nvml.GPU_RECOVERY_ACTION_RECOVER_IMEX_DOMAIN}, notes: []string{"the driver wants the IMEX domain to be recovered"}},
		{description: "an action of the future", reading: reading{recovery: 99}},
		{description: "exclusive", reading: reading{mode: nvml.COMPUTEMODE_EXCLUSIVE_PROCESS}, cordon: "its compute mode is EXCLUSIVE_PROCESS"},
		{description: "exclusive thread", reading: reading{mode: nvml.COMPUTEMODE_EXCLUSIVE_THREAD}, cordon: "its compute mode is EXCLUSIVE_THREAD"},
		{description: "prohibited", reading: reading{mode: nvml.COMPUTEMODE_PROHIBITED}, cordon: "its compute mode is PROHIBITED"},
		{description: "MIG", reading: reading{mig: true}, cordon: "MIG is enabled; its instances are not configured as GPUs"},
		{description: "MPS", reading: reading{mps: true}, cordon: "MPS is active on it"},
		{
			description: "two reasons", reading: reading{mode: nvml.COMPUTEMODE_EXCLUSIVE_PROCESS, mps: true},
			cordon: "its compute mode is EXCLUSIVE_PROCESS; MPS is active on it",
		},
		{description: "idle clocks and a power cap", reading: reading{clocks: 0x1 | 0x4}},
		{
			description: "throttled", reading: reading{clocks: 0x8 | 0x20 | 0x40 | 0x80},
			notes: []string{
				"clocks are held down: hardware slowdown", "clocks are held down: thermal slowdown by software",
				"clocks are held down: thermal slowdown by hardware", "clocks are held down: power brake",
			},
		},
	} {
		t.Run(test.description, func(t *testing.T) {
			want := gpu.Health{UUID: "GPU-a", Down: test.down, Cordon: test.cordon, Notes: test.notes}
			if diff := cmp.Diff(want, state{}.looked(test.reading).health("GPU-a")); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestAnApplicationsXidTakesNothingDown(t *testing.T) {
	for _, number := range []uint64{13, 31, 43, 45, 68, 94, 109, 63, 154, 7, 999} {
		if h := (state{}).struck(number).health("GPU-a"); !h.Same(gpu.Health{UUID: "GPU-a"}) {
			t.Errorf("Xid %d: %+v", number, h)
		}
	}
}

func TestCriticalXids(t *testing.T) {
	for _, number := range []uint64{46, 48, 62, 64, 74, 79, 95, 110, 119, 120, 136, 140, 143, 155, 156, 158} {
		if h := (state{}).struck(number).health("GPU-a"); h.Down != xidText(number) || !strings.Contains(h.Down, ": ") {
			t.Errorf("Xid %d: %+v", number, h)
		}
	}
}

// The rule of state.xid: well looks alone do not overcome an Xid, a look at a GPU
// that needs a reset and then a well one do.
func TestACriticalXidStaysUntilAReset(t *testing.T) {
	var (
		well   reading
		lost   = reading{lost: "gone"}
		broken = reading{recovery: nvml.GPU_RECOVERY_ACTION_GPU_RESET}
		drain  = reading{recovery: nvml.GPU_RECOVERY_ACTION_DRAIN_P2P}
	)
	const xid = "Xid 79: GPU has fallen off the bus"
	for _, test := range []struct {
		description string
		before      reading // the Xid
		after       []reading
		down        string
	}{
		{"at once", well, nil, xid},
		{"never away", well, []reading{well, well, well}, xid},
		{"not reset but drained", well, []reading{drain, well}, xid},
		{"lost", well, []reading{lost}, "gone"},
		{"lost and back", well, []reading{well, lost, lost, well}, ""},
		{"lost before the Xid came, and back", lost, []reading{lost, well}, ""},
		{"back at the first look after the Xid", lost, []reading{well}, ""},
		{"to be reset", well, []reading{broken}, xid + "; the driver wants the GPU to be reset"},
		{"reset", well, []reading{well, broken, well}, ""},
	} {
		t.Run(test.description, func(t *testing.T) {
			s := state{}.looked(test.before).struck(79)
			for _, r := range test.after {
				s = s.looked(r)
			}
			if got := s.health("").Down; got != test.down {
				t.Errorf("down is %q, want %q", got, test.down)
			}
		})
	}
	s := state{}.struck(95).struck(79)
	if got := s.health("").Down; !strings.HasPrefix(got, "Xid 95") {
		t.Errorf("the first of two does not count: %q", got)
	}
	if s = s.looked(lost).looked(well).struck(48); s.health("").Down != xidText(48) {
		t.Errorf("one after a reset does not count: %q", s.health("").Down)
	}
}

func TestASilentGPUIsCordoned(t *testing.T) {
	s := state{silent: true}
	if h := s.health(""); h.Cordon == "" || h.Down != "" {
		t.Errorf("%+v", h)
	}
	if h := s.looked(reading{}).health(""); h.Cordon != "" {
		t.Errorf("%+v", h)
	}
}
