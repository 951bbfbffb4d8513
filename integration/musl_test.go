// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// muslRootfs makes a root file system without any glibc.
func muslRootfs(t *testing.T) string {
	t.Helper()
	paths, err := harness.DefaultPaths()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "r")
	if err := harness.MuslRootfs(paths, dir); err != nil {
		t.Fatal(err)
	}
	return dir
}

// A container whose C library is musl computes in turns with one of glibc's, is
// accounted, and sees its own vGPU by NVML. Its root file system is read-only
// and has no /etc.
func TestMusl(t *testing.T) {
	harnesstest.Versions(t, func(t *testing.T, v harness.Version) {
		n := start(t, harness.Options{Version: v, Daemon: harness.DaemonOptions{GPUs: "sim:1", LogLevel: "trace"}})
		musl := n.Launch(harness.Spec{
			ID: "musl", Rootfs: muslRootfs(t), ReadOnly: true, Args: []string{"/vgpu/late", "0"},
			Annotations: map[string]string{"vgpu-shim.dev/memory": "1Gi"},
		})
		n.Says(musl, "running")
		glibc := n.Launch(harness.Spec{ID: "glibc", Args: burstArgs(60)})
		tenants := n.Tenants(musl, glibc)
		ids := n.VGPUIDs(tenants)
		n.Finish(glibc)

		s := n.monitor(musl)
		mine, err := n.VGPU("musl")
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(s["count"], []string{"1"}) || !slices.Equal(s["uuid"], mine.GetGpus()) || !strings.HasSuffix(strings.Join(s["name"], ""), " (vGPU)") {
			t.Errorf("NVML shows %v, it is on %v", s, mine.GetGpus())
		}
		if !strings.HasPrefix(strings.Join(s["memory"], ""), fmt.Sprint(1<<30, " ")) || !strings.HasPrefix(strings.Join(s["pid"], ""), "1 ") {
			t.Errorf("NVML shows %v, not a memory of 1 GiB and the container's process 1", s)
		}
		n.accounted("musl")
		if err := musl.Kill(n.Ctx, 9); err != nil {
			t.Fatal(err)
		}
		if _, err := musl.Wait(n.Ctx); err != nil {
			t.Fatal(err)
		}
		if o := n.NoOverlap(); len(o.Tenants) != 2 {
			t.Errorf("the simulated GPU has seen %d tenants, want 2", len(o.Tenants))
		}
		n.InTurns(ids)
	})
}

// accounted checks that vgpu ps shows a process of a container, and that it held
// a GPU in more than one turn.
func (n *node) accounted(id string) {
	n.T.Helper()
	text, err := n.Daemon.CLI(n.Ctx, "ps", "--output", "json")
	if err != nil {
		n.T.Fatal(err)
	}
	list, err := vgpus(text)
	if err != nil {
		n.T.Fatal(err)
	}
	for _, one := range list {
		if c, _ := one["container"].(map[string]any); c["id"] != id {
			continue
		}
		usage, _ := one["usage"].(map[string]any)
		turns, _ := usage["turns"].(float64)
		if one["clients"] != 1.0 || turns < 2 {
			n.T.Errorf("vgpu ps shows %v", one)
		}
		return
	}
	n.T.Errorf("vgpu ps does not show %s: %s", id, text)
}

// An image that has a list of its own for musl keeps it, but it is hidden while
// the container runs: what a container gets does not depend on it.
func TestMuslListOfAnImageIsHidden(t *testing.T) {
	const theirs = "/opt/lib\n"
	dir := muslRootfs(t)
	list := filepath.Join(dir, "etc", "ld-musl-x86_64.path")
	if err := os.Mkdir(filepath.Dir(list), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(list, []byte(theirs), 0o600); err != nil {
		t.Fatal(err)
	}
	n := start(t, harness.Options{Version: harness.Containerd24})
	n.Run(harness.Spec{ID: "own", Rootfs: dir, Args: []string{"/vgpu/vecadd"}})
	if b, err := os.ReadFile(list); err != nil || string(b) != theirs {
		t.Errorf("the image's list became %q, %v", b, err)
	}
}
