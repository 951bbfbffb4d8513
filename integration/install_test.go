// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
	"github.com/vgpu-shim/vgpu/vgpu/install"
)

// prefix is the root of another system, in which the product is installed.
type prefix struct {
	t    *testing.T
	root string
	vgpu string // the program that installs
}

func (p prefix) at(path string) string { return filepath.Join(p.root, path) }

func (p prefix) run(args ...string) (string, error) {
	out, err := exec.Command(p.vgpu, append(args, "--root", p.root)...).CombinedOutput()
	return string(out), err
}

func (p prefix) must(args ...string) string {
	p.t.Helper()
	out, err := p.run(args...)
	if err != nil {
		p.t.Fatalf("vgpu %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return out
}

// versions are the directories of the installed versions.
func (p prefix) versions() []string {
	all, err := filepath.Glob(p.at("usr/lib/vgpu/versions/*"))
	if err != nil {
		p.t.Fatal(err)
	}
	return all
}

// nextTree is a tree as make build leaves it, of another version: its library is
// another file that works alike.
func nextTree(t *testing.T, paths harness.Paths) string {
	t.Helper()
	dir := t.TempDir()
	for _, part := range []string{"bin", "configs", "build/simgpu/bin", "build/simgpu/lib"} {
		if err := os.CopyFS(filepath.Join(dir, part), os.DirFS(filepath.Join(paths.Root, part))); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, "build/lib"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, from := range map[string]string{"libvgpu-cuda.so": paths.Library, "libvgpu-nvml.so": paths.NVML, "libvgpu-opencl.so": paths.OpenCL} {
		content, err := os.ReadFile(from)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, "build/lib", name), append(content, 0), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// What was installed runs containers, under the configuration that was written; an
// upgrade leaves those that run what they have; nothing is left in the end.
func TestANodeOfWhatWasInstalled(t *testing.T) {
	harnesstest.Versions(t, func(t *testing.T, v harness.Version) {
		paths, err := harness.DefaultPaths()
		if err != nil {
			t.Fatal(err)
		}
		bin, err := paths.ContainerdBin(v)
		if err != nil {
			t.Fatal(err)
		}
		root, err := os.MkdirTemp("/tmp", "vgpu-root-")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(root) })
		p := prefix{t, root, filepath.Join(paths.Bin, "vgpu")}
		config := p.at("etc/containerd/config.toml")
		if err := os.MkdirAll(filepath.Dir(config), 0o755); err != nil {
			t.Fatal(err)
		}
		unlock, err := install.Options{Root: root}.Lock()
		if err != nil {
			t.Fatal(err)
		}
		for _, command := range [][]string{{"install", "--from", paths.Root, "--no-containerd"}, {"uninstall"}} {
			if out, err := p.run(command...); err == nil || !strings.Contains(out, "is under way in "+root) {
				t.Errorf("%v beside another: %v: %s", command, err, out)
			}
		}
		unlock()
		p.must("install", "--from", paths.Root, "--no-containerd")

		installed := paths
		installed.Bin = p.at("usr/local/bin")
		installed.Library, installed.NVML, installed.OpenCL = p.at("usr/lib/vgpu/libvgpu-cuda.so"), p.at("usr/lib/vgpu/libvgpu-nvml.so"), p.at("usr/lib/vgpu/libvgpu-opencl.so")
		installed.Musl, installed.Simulated = p.at("usr/lib/vgpu/musl"), p.at("usr/lib/vgpu/simgpu")
		var before []byte
		n := &node{harnesstest.StartFrom(t, installed, rootfs, harness.Options{
			Version: v, Config: config, CRI: true,
			Configure: func() (err error) {
				if before, err = os.ReadFile(config); err != nil {
					return err
				}
				p.must("install", "--from", paths.Root, "--containerd", filepath.Join(bin, "containerd"))
				now, err := os.ReadFile(config)
				if err == nil && bytes.Equal(before, now) {
					err = errors.New("containerd's configuration was not changed")
				}
				return err
			},
		})}
		if v != harness.Containerd24 { // which was built without CRI
			n.cri()
		}

		first := n.Launch(harness.Spec{ID: "first", Args: []string{"hog", "--ms", "0"}})
		n.Says(first, "running")
		one, err := os.Stat(installed.Library)
		if err != nil {
			t.Fatal(err)
		}
		n.library(first, one)
		if out, err := p.run("uninstall"); err == nil || !strings.Contains(out, "containers still run") || !strings.Contains(out, fmt.Sprint(first.PID)) {
			t.Errorf("uninstall below a container: %v: %s", err, out)
		}

		next := nextTree(t, paths)
		if out := p.must("install", "--from", next, "--containerd", filepath.Join(bin, "containerd")); !strings.Contains(out, "stays:") || len(p.versions()) != 2 {
			t.Errorf("%q: %s", p.versions(), out)
		}
		two, err := os.Stat(installed.Library)
		if err != nil || os.SameFile(one, two) {
			t.Fatalf("the library is the old one: %v", err)
		}
		second := n.Launch(harness.Spec{ID: "second", Args: []string{"hog", "--ms", "0"}})
		n.Says(second, "running")
		n.library(first, one)
		n.library(second, two)
		// What it runs later has the same library, and works.
		if out, err := first.Exec(n.Ctx, "/vgpu/vecadd"); err != nil {
			t.Errorf("%v: %s", err, out)
		}
		if err := n.Containerd.RemoveAll(n.Ctx); err != nil {
			t.Fatal(err)
		}
		// Shims go a moment after their containers, and vgpud is of the old version.
		if err := n.Daemon.Process().Stop(); err != nil {
			t.Fatal(err)
		}
		if err := n.Daemon.Start(n.Ctx); err != nil {
			t.Fatal(err)
		}
		n.Wait(func() error {
			p.must("install", "--from", next, "--containerd", filepath.Join(bin, "containerd"))
			if left := p.versions(); len(left) != 1 {
				return fmt.Errorf("versions are %q", left)
			}
			return nil
		})
		n.Run(harness.Spec{ID: "third", Args: []string{"vecadd"}})
		if err := n.Containerd.RemoveAll(n.Ctx); err != nil {
			t.Fatal(err)
		}

		n.Wait(func() error {
			out, err := p.run("uninstall")
			if err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			return nil
		})
		if after, err := os.ReadFile(config); err != nil || !bytes.Equal(before, after) {
			t.Errorf("containerd's configuration is not as before: %v:\n%s", err, after)
		}
		var left []string
		if err := filepath.WalkDir(root, func(path string, _ os.DirEntry, err error) error {
			left = append(left, strings.TrimPrefix(path, root))
			return err
		}); err != nil {
			t.Fatal(err)
		}
		if want := []string{"", "/etc", "/etc/containerd", "/etc/containerd/config.toml"}; !slices.Equal(left, want) {
			t.Errorf("%q is left, want %q", left, want)
		}
	})
}

// cri waits until containerd has CRI, which refuses a configuration without its
// default runtime.
func (n *node) cri() {
	n.T.Helper()
	out, err := n.Containerd.CtrCommand(n.Ctx, "plugins", "list").Output()
	if err != nil {
		n.T.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) >= 4 && f[1] == "cri" {
			if f[len(f)-1] != "ok" {
				n.T.Errorf("CRI did not start: %s%s", line, n.Containerd.Process().Tail())
			}
			return
		}
	}
	n.T.Errorf("no CRI in\n%s", out)
}

// library fails the test if a container has another one in the driver's place.
func (n *node) library(c *harness.Container, want os.FileInfo) {
	n.T.Helper()
	have, err := os.Stat(fmt.Sprintf("/proc/%d/root/usr/lib/x86_64-linux-gnu/libcuda.so.1", c.PID))
	if err != nil || !os.SameFile(have, want) {
		n.T.Errorf("container %s has another library: %v", c.ID, err)
	}
}

// The doctor's own container finds our libraries in the driver's place, and leaves
// nothing; one that can not start is a fault.
func TestTheDoctorRunsAContainer(t *testing.T) {
	harnesstest.Versions(t, func(t *testing.T, v harness.Version) {
		library := filepath.Join(t.TempDir(), "libvgpu-cuda.so")
		paths, err := harness.DefaultPaths()
		if err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(paths.Library)
		if err == nil {
			err = os.WriteFile(library, content, 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		n := start(t, harness.Options{Version: v, Daemon: harness.DaemonOptions{Library: library}})
		examine := func() map[string]string {
			t.Helper()
			found := map[string]string{}
			for _, f := range n.examined(v) {
				found[f.Check] += f.Result + " " + f.Detail + "\n"
			}
			return found
		}
		before, err := filepath.Glob("/run/containerd/runc/vgpu-doctor-*")
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv("TMPDIR", t.TempDir()) // other tests' doctors have theirs elsewhere
		version, err := os.ReadFile(filepath.Join(paths.Tools, "debian", "runc", ".version"))
		if err != nil {
			t.Fatal(err)
		}
		found := examine()
		for check, says := range map[string]string{
			"container":   "ok a container ran, and had ours as /usr/lib/",
			"containerd":  "ok version " + v.Number() + "; CRI is disabled",
			"runc":        "skipped " + strings.TrimSpace(string(version)) + " is a distribution's",
			"kernel":      "ok NVIDIA's",
			"permissions": "ok root alone",
		} {
			if !strings.HasPrefix(found[check], says) {
				t.Errorf("%s: %q, want %q", check, found[check], says)
			}
		}
		for says, times := range map[string]int{"ok a container ran, and had ours as ": 2, "ok a container ran, and could load /.vgpu/libvgpu-opencl.so\n": 1} {
			if got := strings.Count(found["container"], says); got != times {
				t.Errorf("%d times %q, want %d: %s", got, says, times, found["container"])
			}
		}

		if out, err := n.Containerd.CtrCommand(n.Ctx, "namespaces", "list", "--quiet").Output(); err != nil || strings.Contains(string(out), "vgpu-doctor-") {
			t.Errorf("%v: %s", err, out)
		}
		for _, pattern := range []string{"/sys/fs/cgroup/*/vgpu-doctor-*", "/sys/fs/cgroup/vgpu-doctor-*", filepath.Join(os.TempDir(), "vgpu-doctor-*")} {
			if left, err := filepath.Glob(pattern); err != nil || len(left) > 0 {
				t.Errorf("%q is left, %v", left, err)
			}
		}
		if after, err := filepath.Glob("/run/containerd/runc/vgpu-doctor-*"); err != nil || len(after) > len(before) {
			t.Errorf("runc has %q, had %q, %v", after, before, err)
		}

		if err := os.Remove(library); err != nil {
			t.Fatal(err)
		}
		if found := examine(); !strings.HasPrefix(found["container"], "fault a container under io.containerd.vgpu.v1 did not run: ") {
			t.Errorf("without the library: %q", found["container"])
		}
	})
}
