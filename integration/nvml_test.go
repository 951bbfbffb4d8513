// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// shown is what the program monitor says.
type shown map[string][]string

func (n *node) monitor(c *harness.Container) shown {
	n.T.Helper()
	out, err := c.Exec(n.Ctx, "/vgpu/monitor")
	if err != nil {
		n.T.Fatalf("monitor: %v: %s", err, out)
	}
	s := shown{}
	for line := range strings.Lines(out) {
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		s[key] = append(s[key], value)
	}
	return s
}

// A container sees its own GPU, memory, use and processes, by the container's own
// pids, and nothing of its neighbour on the same GPU.
func TestNVMLShowsTheVGPU(t *testing.T) {
	n := start(t, harness.Options{Version: harness.Containerd24, Daemon: harness.DaemonOptions{GPUs: "sim:2"}})
	busy := n.Launch(harness.Spec{ID: "busy", Args: []string{"hog", "--ms", "0"}, Annotations: map[string]string{"vgpu-shim.dev/memory": "1Gi"}})
	n.Says(busy, "running")
	idle := n.Launch(harness.Spec{ID: "idle", Args: []string{"inert"}})
	n.Says(idle, "loaded")

	var b shown
	n.Wait(func() error {
		if b = n.monitor(busy); len(b["pid"]) != 1 || slices.Contains(b["use"], "0") {
			return fmt.Errorf("the busy container sees %v", b)
		}
		return nil
	})
	v, err := n.VGPU("busy")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(b["count"], []string{"1"}) || !slices.Equal(b["uuid"], v.GetGpus()) {
		t.Errorf("it sees %v, is on %v", b, v.GetGpus())
	}
	if name := strings.Join(b["name"], ""); !strings.HasSuffix(name, " (vGPU)") {
		t.Errorf("its GPU is called %q", name)
	}
	if !strings.HasPrefix(b["memory"][0], fmt.Sprint(1<<30, " ")) {
		t.Errorf("its memory is %v", b["memory"])
	}
	if !strings.HasPrefix(b["pid"][0], "1 ") {
		t.Errorf("its process is %v, in the container's numbers 1", b["pid"])
	}

	i := n.monitor(idle)
	if len(i["pid"]) != 0 || !slices.Equal(i["use"], []string{"0"}) || !slices.Equal(i["count"], []string{"1"}) {
		t.Errorf("its idle neighbour sees %v", i)
	}
}
