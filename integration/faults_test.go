// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"maps"
	"syscall"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// heldForever makes a drain last longer than any test: nothing but the death of
// the holder frees a GPU that its kernel occupies.
func heldForever() harness.DaemonOptions {
	return harness.DaemonOptions{Drain: longest}
}

// holderAndWaiter starts a container that holds the only GPU with a kernel that
// outlives every test, and one that waits for it.
func (n *node) holderAndWaiter() (holder, waiter *harness.Container) {
	n.T.Helper()
	holder = n.Launch(harness.Spec{ID: "holder", Args: []string{"burst", "--launches", "1", "--gpu-us", "3600000000"}})
	n.In("holder", "HOLDING", "DRAINING")
	waiter = n.Launch(harness.Spec{ID: "waiter", Args: []string{"vecadd"}})
	n.In("waiter", "PENDING")
	return holder, waiter
}

// A container killed in the middle of its turn: the next one is granted.
func TestContainerKilledInTurn(t *testing.T) {
	harnesstest.Versions(t, func(t *testing.T, v harness.Version) {
		n := start(t, harness.Options{Version: v, Daemon: heldForever()})
		holder, waiter := n.holderAndWaiter()
		if err := holder.Kill(n.Ctx, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		n.Finish(waiter)
		n.NoOverlap()
	})
}

// The shim killed: its container goes with it, and so does the vGPU.
func TestShimKilledInTurn(t *testing.T) {
	harnesstest.Versions(t, func(t *testing.T, v harness.Version) {
		n := start(t, harness.Options{Version: v, Daemon: heldForever()})
		holder, waiter := n.holderAndWaiter()
		shim, err := holder.ShimPID()
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Kill(shim, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		n.Finish(waiter)
		n.Wait(func() error {
			if v, err := n.VGPU("holder"); err == nil {
				return fmt.Errorf("the vGPU %s is still there", v.GetId())
			}
			return nil
		})
		n.NoOverlap()
	})
}

// vgpud killed and started again: nobody dies, and turns go on.
func TestDaemonKilled(t *testing.T) {
	harnesstest.Versions(t, func(t *testing.T, v harness.Version) {
		n := start(t, harness.Options{Version: v})
		tenants := n.three(1_000_000)
		n.GoOn(tenants, nil)
		for range 3 {
			if err := n.Daemon.Process().Kill(); err != nil {
				t.Fatal(err)
			}
			for _, c := range tenants {
				if c.Ended() {
					t.Fatalf("container %s did not survive vgpud: %s", c.ID, c.Output())
				}
			}
			if err := n.Daemon.Start(n.Ctx); err != nil {
				t.Fatal(err)
			}
			n.GoOn(tenants, n.Submissions())
		}
		n.Run(harness.Spec{ID: "new", Args: []string{"vecadd"}})
		n.NoOverlap()
	})
}

// containerd restarted, also after a kill: containers go on with the vGPUs that they
// have, and their shims still answer.
func TestContainerdRestarted(t *testing.T) {
	harnesstest.Versions(t, func(t *testing.T, v harness.Version) {
		n := start(t, harness.Options{Version: v})
		tenants := n.three(1_000_000)
		n.GoOn(tenants, nil)
		had := n.VGPUIDs(tenants)
		for _, end := range []struct {
			how string
			end func() error
		}{
			{"stopped", n.Containerd.Process().Stop},
			{"killed", func() error { return n.Containerd.Process().Kill() }},
		} {
			if err := end.end(); err != nil {
				t.Fatal(err)
			}
			if err := n.Containerd.Start(n.Ctx); err != nil {
				t.Fatal(err)
			}
			n.GoOn(tenants, n.Submissions())
			n.asBefore(tenants, had)
		}
		n.NoOverlap()
	})
}

// asBefore fails the test if a container does not run, with the vGPU that it had
// and with a shim that answers.
func (n *node) asBefore(tenants map[harness.Tenant]*harness.Container, had map[harness.Tenant]string) {
	n.T.Helper()
	if now := n.VGPUIDs(tenants); !maps.Equal(now, had) {
		n.T.Errorf("the vGPUs are %v, and were %v", now, had)
	}
	for _, c := range tenants {
		if state, err := c.TaskState(n.Ctx); err != nil || state != "RUNNING" {
			n.T.Errorf("containerd says of %s: %q, %v", c.ID, state, err)
		}
		if out, err := c.Exec(n.Ctx, "echo", "here"); err != nil || out != "here\n" {
			n.T.Errorf("exec in %s: %q, %v", c.ID, out, err)
		}
	}
}
