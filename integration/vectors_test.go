// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// A container gets a vGPU, and its CUDA program computes what it should.
func TestVectors(t *testing.T) {
	harnesstest.Versions(t, func(t *testing.T, v harness.Version) {
		n := start(t, harness.Options{Version: v, Daemon: harness.DaemonOptions{GPUs: "sim:2"}})
		var result struct {
			OK      bool
			Devices int
			Name    string
		}
		harnesstest.LastJSON(t, n.Run(harness.Spec{ID: "vectors", Args: []string{"vecadd"}}), &result)
		if !result.OK || result.Devices != 1 {
			t.Errorf("got %+v, want a right sum on one device", result)
		}
		if o := n.NoOverlap(); len(o.Tenants) != 1 || o.Submissions == 0 {
			t.Errorf("the simulated GPU has seen %+v, want work of one tenant", o)
		}
	})
}

// What makes images hard: a read-only root file system, a user who is not root,
// a tmpfs over /run; all at once.
func TestRestrictedContainer(t *testing.T) {
	harnesstest.Versions(t, func(t *testing.T, v harness.Version) {
		n := start(t, harness.Options{Version: v})
		var result struct{ OK bool }
		harnesstest.LastJSON(t, n.Run(harness.Spec{
			ID:       "restricted",
			Args:     []string{"vecadd"},
			ReadOnly: true,
			User:     "1000:1000",
			Mounts:   []string{"type=tmpfs,src=tmpfs,dst=/run,options=mode=0755", "type=tmpfs,src=tmpfs,dst=/tmp,options=mode=1777"},
		}), &result)
		if !result.OK {
			t.Error("the sum is not reported as right")
		}
	})
}

// Without a vGPU nothing changes: the runtime writes the very config.json that
// the stock runtime would have, and needs no vgpud.
func TestPassThrough(t *testing.T) {
	harnesstest.Versions(t, func(t *testing.T, v harness.Version) {
		n := start(t, harness.Options{Version: v, NoDaemon: true})
		config := func(runtime string) string {
			c := n.Launch(harness.Spec{
				ID:      "plain",
				Runtime: runtime,
				Args:    []string{"sh", "-c", "cut -d' ' -f5 /proc/self/mountinfo; echo listed; sleep 600"},
				// A key that no Go type of the OCI specification has would not
				// survive decoding and encoding; ctr can not make one, but bytes
				// are compared.
				Annotations: map[string]string{"vgpu-shim.dev/gpus": "0", "example.com/other": "<&> é"},
			})
			b, err := os.ReadFile(filepath.Join(n.Containerd.BundlePath(c.ID), "config.json"))
			if err != nil {
				t.Fatal(err)
			}
			n.Says(c, "listed")
			// The mounts, not the files: other containers leave mount points in
			// the shared root file system.
			for _, of := range []string{"/.vgpu", "libcuda", "/dev/simgpu", "/dev/nvidia"} {
				if strings.Contains(c.Output(), of) {
					t.Errorf("%s: a vGPU is mounted:\n%s", runtime, c.Output())
				}
			}
			if err := c.Remove(n.Ctx); err != nil {
				t.Fatal(err)
			}
			return string(b)
		}
		stock := config(harness.RuncRuntime)
		if ours := config(harness.VGPURuntime); ours != stock {
			t.Errorf("config.json differs:\nstock: %s\nours:  %s", stock, ours)
		}
	})
}
