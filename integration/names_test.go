// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// The shim by other names than io.containerd.vgpu.v1: its path, and that of runc's
// shim.

// ours fails the test if the shim of a container is not our program.
func (n *node) ours(c *harness.Container) {
	n.T.Helper()
	pid, err := c.ShimPID()
	if err != nil {
		n.T.Fatal(err)
	}
	program, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", pid))
	if err != nil || filepath.Base(program) != harness.ShimProgram {
		n.T.Errorf("the shim of container %s is %s (%v), want ours", c.ID, program, err)
	}
}

// plain fails the test if a container that lists its mounts was given anything of
// a vGPU.
func (n *node) plain(s harness.Spec) {
	n.T.Helper()
	s.Args = []string{"sh", "-c", "cut -d' ' -f5 /proc/self/mountinfo; echo listed; sleep 600"}
	c := n.Launch(s)
	n.Says(c, "listed")
	n.ours(c)
	for _, of := range []string{"/.vgpu", "libcuda", "/dev/simgpu", "/dev/nvidia"} {
		if strings.Contains(c.Output(), of) {
			n.T.Errorf("a vGPU is mounted:\n%s", c.Output())
		}
	}
	if v, err := n.VGPU(c.ID); err == nil {
		n.T.Errorf("vgpud made a vGPU: %v", v)
	}
	if err := c.Remove(n.Ctx); err != nil {
		n.T.Fatal(err)
	}
}

// computes runs a container to its end whose program computes on a vGPU, under
// our shim.
func (n *node) computes(s harness.Spec) {
	n.T.Helper()
	// It lives until it has been looked at.
	s.Args = []string{"sh", "-c", "/vgpu/vecadd && echo added && sleep 600"}
	c := n.Launch(s)
	n.Says(c, "added")
	n.ours(c)
	if _, err := n.VGPU(c.ID); err != nil {
		n.T.Error(err)
	}
	if err := c.Remove(n.Ctx); err != nil {
		n.T.Fatal(err)
	}
}

// By its path the shim is what it is by its name: a container has a vGPU if it does
// not say otherwise. In the place of runc's shim, one has a vGPU only if it asks.
func TestShimByOtherNames(t *testing.T) {
	harnesstest.Versions(t, func(t *testing.T, v harness.Version) {
		n := &node{harnesstest.StartRenamed(t, rootfs, harness.Options{Version: v})}
		path := filepath.Join(n.Paths.Bin, harness.ShimProgram)
		n.computes(harness.Spec{ID: "path-with", Runtime: path})
		n.plain(harness.Spec{ID: "path-without", Runtime: path, Annotations: map[string]string{"vgpu-shim.dev/gpus": "0"}})
		n.computes(harness.Spec{ID: "runc-with", Runtime: harness.RuncRuntime, Annotations: map[string]string{"vgpu-shim.dev/gpus": "1"}})
		n.plain(harness.Spec{ID: "runc-without", Runtime: harness.RuncRuntime})
		n.NoOverlap()
	})
}
