// SPDX-License-Identifier: Apache-2.0

// Package versions holds the tests of what happens between versions of containerd.
// They need root and what make setup-versions brings in, and fail without.
package versions

import (
	"os"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

var rootfs string

func TestMain(m *testing.M) { os.Exit(harnesstest.Main(m, &rootfs)) }

// containerd is upgraded below containers that compute, from each version to the
// next: they go on, those of every version before can be executed in, and new ones
// take turns with them. In the end the newest kills and deletes them all.
func TestContainerdIsUpgraded(t *testing.T) {
	n := harnesstest.Start(t, rootfs, harness.Options{Version: harness.Containerd16, Daemon: harness.DaemonOptions{LogLevel: "trace"}})
	all := map[harness.Tenant]*harness.Container{}
	launch := func(id string) {
		t.Helper()
		c := n.Launch(harness.Spec{ID: id, Args: []string{"burst", "--bursts", "1000000", "--launches", "5", "--gpu-us", "10000", "--cpu-us", "0", "--rest-us", "5000"}})
		for tenant := range n.Tenants(c) {
			all[tenant] = c
		}
		n.GoOn(all, n.Submissions())
	}
	launch("of-" + string(harness.Containerd16))
	for _, v := range append(harness.Between(), harness.Containerd24) {
		if err := n.Containerd.Upgrade(n.Ctx, n.Paths, v); err != nil {
			t.Fatal(err)
		}
		n.GoOn(all, n.Submissions())
		for _, c := range all {
			if out, err := c.Exec(n.Ctx, "/vgpu/vecadd"); err != nil {
				t.Errorf("under containerd %s: %v: %s", v, err, out)
			}
		}
		launch("of-" + string(v))
	}
	ids := n.VGPUIDs(all)
	for _, c := range all {
		if state, err := c.TaskState(n.Ctx); err != nil || state != "RUNNING" {
			t.Errorf("the newest containerd says that container %s is %q (%v)", c.ID, state, err)
		}
	}
	if err := n.Containerd.RemoveAll(n.Ctx); err != nil {
		t.Error(err)
	}
	n.NoOverlap()
	n.InTurns(ids) // of turns that have ended
}
