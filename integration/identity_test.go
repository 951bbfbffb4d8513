// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// devices are the UUIDs of all devices as CUDA tells them, in its order.
func (p *talker) devices() []string {
	p.t.Helper()
	return strings.Fields(p.ask("devices"))[1:]
}

// All processes of a container see the same GPUs, in the same order, by CUDA and
// by NVML, and no others; an allocation is charged to the GPU on which it is.
func TestIdentityOfTwoGPUs(t *testing.T) {
	n := start(t, harness.Options{Version: harness.Containerd24, Daemon: harness.DaemonOptions{GPUs: "sim:3", Engine: "binding = \"spread\"\n"}})
	first, alone := n.memory(harness.Spec{ID: "first"}) // so that the other two are those of least use
	if got := alone.devices(); len(got) != 1 {
		t.Fatalf("a container of one GPU sees %v", got)
	}
	c, one := n.memory(harness.Spec{ID: "pair", Annotations: map[string]string{
		"vgpu-shim.dev/gpus": "2", "vgpu-shim.dev/memory": "1Gi",
	}})
	monitored := n.monitor(c)["uuid"] // NVML first: it binds
	two := n.beside(c, "second")
	want := one.devices()
	if len(want) != 2 || !slices.Equal(two.devices(), want) || !slices.Equal(monitored, want) {
		t.Errorf("one process sees %v, another %v, NVML %v", want, two.devices(), monitored)
	}
	if slices.Contains(want, alone.devices()[0]) {
		t.Errorf("it is on %v, where %v is already", want, alone.devices())
	}
	v, err := n.VGPU("pair")
	if err != nil || !slices.Equal(v.GetGpus(), want) {
		t.Errorf("vgpud has it on %v, %v", v.GetGpus(), err)
	}

	one.must("ok", "use 1")
	one.alloc("plain", 128*mib)
	two.must("ok", "use 0")
	two.alloc("physical", 64*mib)
	two.must("ok", "use 1")
	two.alloc("array", 32*mib)
	n.Wait(func() error {
		got := map[string]uint64{}
		var all []struct {
			Container struct{ ID string }
			Memory    []struct {
				GPU  string
				Used uint64 `json:"used_bytes"`
			}
		}
		if err := json.Unmarshal([]byte(n.cli("ps", "--output", "json")), &all); err != nil {
			return err
		}
		for _, v := range all {
			for _, m := range v.Memory {
				got[v.Container.ID+" "+m.GPU] = m.Used
			}
		}
		if got["pair "+want[0]] != contextMemory+64*mib || got["pair "+want[1]] != 2*contextMemory+160*mib {
			return fmt.Errorf("vgpu ps tells %v", got)
		}
		return nil
	})
	if m := two.info(); m != (numbers{gib - 2*contextMemory - 160*mib, gib, gib}) {
		t.Errorf("of the second GPU CUDA tells %+v", m)
	}
	wantMemory := []string{
		fmt.Sprint(uint64(gib), " ", contextMemory+64*mib, " ", gib-contextMemory-64*mib),
		fmt.Sprint(uint64(gib), " ", 2*contextMemory+160*mib, " ", gib-2*contextMemory-160*mib),
	}
	if got := n.monitor(c)["memory"]; !slices.Equal(got, wantMemory) {
		t.Errorf("NVML tells %v, want %v", got, wantMemory)
	}
	n.kill(first)
}

// A container's own CUDA_VISIBLE_DEVICES chooses among its virtual devices, and
// is what its programs and their children read. NVML does not care for it.
func TestIdentityWithVisibleDevices(t *testing.T) {
	n := start(t, harness.Options{Version: harness.Containerd24, Daemon: harness.DaemonOptions{GPUs: "sim:3"}})
	c, own := n.memory(harness.Spec{
		ID: "pair", Env: []string{"CUDA_VISIBLE_DEVICES=1"}, Annotations: map[string]string{"vgpu-shim.dev/gpus": "2"},
	})
	nvml := n.monitor(c)["uuid"]
	if len(nvml) != 2 {
		t.Fatalf("NVML shows %v", nvml)
	}
	var other string // a GPU that is not this container's
	for _, g := range n.gpus() {
		if !slices.Contains(nvml, g.UUID) {
			other = g.UUID
		}
	}
	check := func(p *talker, value string, want ...string) {
		t.Helper()
		if got := p.devices(); !slices.Equal(got, want) {
			t.Errorf("%s: with %q CUDA shows %v, want %v", p.name, value, got, want)
		}
		p.must(fmt.Sprintf("[%s] [%s]", value, value), "visible")
	}
	check(own, "1", nvml[1])
	check(n.beside(c, "inherits"), "1", nvml[1])
	for i, test := range []struct {
		value string
		want  []string
	}{
		{"0", nvml[:1]},
		{"1,0", []string{nvml[1], nvml[0]}},
		{nvml[1] + "," + nvml[0], []string{nvml[1], nvml[0]}},
		{nvml[0][:20], nvml[:1]},
		{"0,2,1", nvml[:1]}, // there is no third
		{"2", nil},
		{other, nil},
		{"", nil},
	} {
		name := fmt.Sprint("visible", i)
		check(n.beside(c, name, "CUDA_VISIBLE_DEVICES="+test.value), test.value, test.want...)
	}
	unset := n.beside(c, "unset", "-u", "CUDA_VISIBLE_DEVICES")
	check(unset, "unset", nvml...)
	if got := n.monitor(c)["uuid"]; !slices.Equal(got, nvml) {
		t.Errorf("then NVML shows %v, and %v before", got, nvml)
	}

	// What it has on its only visible device is charged to that GPU.
	own.must("ok", "use 0")
	own.alloc("plain", 64*mib)
	n.Wait(func() error {
		v, err := n.VGPU("pair")
		if err != nil {
			return err
		}
		m := v.GetMemory()
		if len(m) != 2 || m[0].GetGpu() != nvml[0] || m[0].GetUsedBytes() != 0 || m[1].GetUsedBytes() != contextMemory+64*mib {
			return fmt.Errorf("vgpud tells %v", m)
		}
		return nil
	})
}
