// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// Invariant 7: a wrong request starts no container, and the error names the key,
// the value and what is allowed.
func TestWrongAnnotations(t *testing.T) {
	cases := []struct {
		description string
		key, value  string
		says        []string
	}{
		{"unknown key", "vgpu-shim.dev/wieght", "100", []string{"vgpu-shim.dev/wieght", "100", "memory", "weight"}},
		{"memory that does not parse", "vgpu-shim.dev/memory", "8 gigs", []string{"vgpu-shim.dev/memory", "8 gigs", "Gi"}},
		{"negative weight", "vgpu-shim.dev/weight", "-5", []string{"vgpu-shim.dev/weight", "-5", "1"}},
		{"count that is no number", "vgpu-shim.dev/gpus", "all", []string{"vgpu-shim.dev/gpus", "all"}},
	}
	harnesstest.Versions(t, func(t *testing.T, v harness.Version) {
		n := start(t, harness.Options{Version: v})
		for _, c := range cases {
			t.Run(c.description, func(t *testing.T) {
				container, err := n.Containerd.Launch(n.Ctx, harness.Spec{
					ID:          "wrong",
					Rootfs:      rootfs,
					Args:        []string{"vecadd"},
					Annotations: map[string]string{c.key: c.value},
				})
				if err == nil {
					t.Fatalf("container %s started", container.ID)
				}
				for _, word := range c.says {
					if !strings.Contains(said(err), word) {
						t.Errorf("the error does not say %q: %v", word, err)
					}
				}
				if err := n.CheckLeaks(n.Ctx); err != nil {
					t.Error(err)
				}
			})
		}
	})
}

// said is what a failed command printed, without the command itself.
func said(err error) string {
	var failed *harness.CommandError
	if !errors.As(err, &failed) {
		return ""
	}
	return failed.Output
}

// A checkpoint of a container that has a vGPU says what is wrong, and the container
// computes on.
func TestACheckpointIsRefused(t *testing.T) {
	harnesstest.Versions(t, func(t *testing.T, v harness.Version) {
		n := start(t, harness.Options{Version: v})
		c := n.Launch(harness.Spec{ID: "kept", Args: []string{"sleep", "100000"}})
		out, err := n.Containerd.CtrCommand(n.Ctx, "tasks", "checkpoint", c.ID).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "container kept has a vGPU and can not be checkpointed: its state on the GPU would be lost") {
			t.Errorf("it says %s, %v", out, err)
		}
		if state, err := c.TaskState(n.Ctx); err != nil || state != "RUNNING" {
			t.Errorf("the container is %s, %v", state, err)
		}
		if out, err := c.Exec(n.Ctx, "vecadd"); err != nil {
			t.Errorf("nothing computes in it any more: %s, %v", out, err)
		}
	})
}

// vgpud is not running: Create fails in time, says how to start it, and leaves
// nothing behind.
func TestNoDaemon(t *testing.T) {
	harnesstest.Versions(t, func(t *testing.T, v harness.Version) {
		n := start(t, harness.Options{Version: v, NoDaemon: true})
		// 3 s is what the shim has; the rest is ctr, containerd and a busy machine.
		ctx, cancel := context.WithTimeout(n.Ctx, 3*time.Second+57*time.Second)
		defer cancel()
		_, err := n.Containerd.Launch(ctx, harness.Spec{ID: "nobody", Rootfs: rootfs, Args: []string{"vecadd"}})
		if err == nil {
			t.Fatal("the container started without an arbiter")
		}
		if ctx.Err() != nil {
			t.Fatalf("Create did not fail in time: %v", err)
		}
		if text := said(err); !strings.Contains(text, "vgpud") || !strings.Contains(text, "start") {
			t.Errorf("the error does not say how to start vgpud: %v", err)
		}
		if err := n.CheckLeaks(n.Ctx); err != nil {
			t.Error(err)
		}
	})
}

// Rubbish on a client socket: that client is disconnected, others do not notice.
func TestRubbish(t *testing.T) {
	n := start(t, harness.Options{Version: harness.Containerd24})
	other := n.Launch(harness.Spec{ID: "other", Args: burstArgs(50)})
	var result struct {
		Sent            int
		StayedConnected int `json:"stayed_connected"`
	}
	harnesstest.LastJSON(t, n.Run(harness.Spec{ID: "rubbish", Args: []string{"rubbish"}}), &result)
	if result.Sent == 0 || result.StayedConnected != 0 {
		t.Errorf("got %+v, want every connection closed", result)
	}
	n.Run(harness.Spec{ID: "after", Args: []string{"vecadd"}})
	n.Finish(other)
	n.NoOverlap()
}
