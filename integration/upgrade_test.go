// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// vgpud and its library are replaced, as make install and packages do it: by new
// files under the old names. A container that runs keeps its own, also for what is
// executed in it later; new ones get the new library; they take turns.
func TestLibraryIsUpgraded(t *testing.T) {
	paths, err := harness.DefaultPaths()
	if err != nil {
		t.Fatal(err)
	}
	old, err := os.ReadFile(paths.Library)
	if err != nil {
		t.Fatal(err)
	}
	library := filepath.Join(t.TempDir(), "libvgpu-cuda.so")
	install := func(content []byte) os.FileInfo {
		t.Helper()
		if err := os.WriteFile(library+".new", content, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(library+".new", library); err != nil {
			t.Fatal(err)
		}
		info, err := os.Stat(library)
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	before := install(old)
	n := start(t, harness.Options{Version: harness.Containerd24, Daemon: harness.DaemonOptions{Library: library}})
	first := n.Launch(harness.Spec{ID: "first", Args: []string{"hog", "--ms", "0"}})
	n.Says(first, "running")

	after := install(append(old, 0)) // another file that works alike
	if err := n.Daemon.Process().Kill(); err != nil {
		t.Fatal(err)
	}
	if err := n.Daemon.Start(n.Ctx); err != nil {
		t.Fatal(err)
	}
	second := n.Launch(harness.Spec{ID: "second", Args: []string{"hog", "--ms", "3000"}})
	inside := func(c *harness.Container) os.FileInfo {
		t.Helper()
		info, err := os.Stat(fmt.Sprintf("/proc/%d/root/usr/lib/x86_64-linux-gnu/libcuda.so.1", c.PID))
		if err != nil {
			t.Fatal(err)
		}
		return info
	}
	if !os.SameFile(inside(first), before) {
		t.Error("the container that ran has another library than before")
	}
	if !os.SameFile(inside(second), after) {
		t.Error("the new container does not have the new library")
	}
	n.Finish(second)
	if out, err := first.Exec(n.Ctx, "/vgpu/vecadd"); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	n.NoOverlap()
}

// containerd is upgraded from the oldest to the newest below containers that run: they
// go on, and what the new one asks of their shims, which its predecessor started,
// works. From version to version it is in integration/versions.
func TestContainerdIsUpgraded(t *testing.T) {
	t.Parallel()
	n := start(t, harness.Options{Version: harness.Containerd16})
	tenants := n.three(1_000_000)
	n.GoOn(tenants, nil)
	had := n.VGPUIDs(tenants)
	if err := n.Containerd.Upgrade(n.Ctx, n.Paths, harness.Containerd24); err != nil {
		t.Fatal(err)
	}
	n.GoOn(tenants, n.Submissions())
	n.asBefore(tenants, had)
	n.Run(harness.Spec{ID: "new", Args: []string{"vecadd"}})
	for _, c := range tenants {
		if err := c.Kill(n.Ctx, syscall.SIGKILL); err != nil {
			t.Error(err)
		}
		if _, err := c.Wait(n.Ctx); err != nil { // with a delete
			t.Error(err)
		}
	}
	n.NoOverlap()
}
