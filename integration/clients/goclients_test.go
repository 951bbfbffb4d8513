// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"debug/buildinfo"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
	"github.com/vgpu-shim/vgpu/vgpu/gpu"
)

// goClients is where setup.sh puts them, and where they are in a container.
const goClients = "go-clients"

// version is that of the module of a program.
func version(n *harnesstest.Node, program string) string {
	n.T.Helper()
	info, err := buildinfo.ReadFile(filepath.Join(n.Paths.Tools, goClients, program))
	if err != nil {
		n.T.Fatal(err)
	}
	return info.Main.Version
}

// neighbours are two containers with a GPU each, of two, on which a program
// computes. In each of them the Go clients are in /go-clients.
func neighbours(t *testing.T) (*harnesstest.Node, []*harness.Container) {
	t.Helper()
	n := harnesstest.Start(t, busybox, harness.Options{Version: harness.Containerd24, Daemon: harness.DaemonOptions{GPUs: "sim:2"}})
	rootfs := host(n)
	var all []*harness.Container
	for _, id := range []string{"one", "two"} {
		c := n.Launch(harness.Spec{
			ID: id, Rootfs: rootfs, Args: []string{"/programs/hog", "--ms", "0", "--kernels", "/kernels"},
			Annotations: map[string]string{"vgpu-shim.dev/memory": "1Gi"},
			Mounts: []string{
				readOnly(n.Paths.Workload, "/programs"), readOnly(n.Paths.Kernels, "/kernels"),
				readOnly(filepath.Join(n.Paths.Tools, goClients), "/"+goClients),
			},
		})
		n.Says(c, "running")
		all = append(all, c)
	}
	return n, all
}

// inBoth runs a command in two containers at once, and returns what each says.
func inBoth(n *harnesstest.Node, both []*harness.Container, args ...string) []string {
	n.T.Helper()
	said, errs := make([]string, len(both)), make(chan error, len(both))
	for i, c := range both {
		go func() {
			var err error
			said[i], err = c.Exec(n.Ctx, args...)
			errs <- err
		}()
	}
	for range both {
		if err := <-errs; err != nil {
			n.T.Fatal(err)
		}
	}
	return said
}

// uuidOf is the GPU of a container.
func uuidOf(n *harnesstest.Node, c *harness.Container) string {
	n.T.Helper()
	v, err := n.VGPU(c.ID)
	if err != nil {
		n.T.Fatal(err)
	}
	if len(v.GetGpus()) != 1 {
		n.T.Fatalf("%s has the GPUs %v", c.ID, v.GetGpus())
	}
	return v.GetGpus()[0]
}

// devices lists names of CDI devices, as nvidia-ctk cdi list does.
func devices(names ...string) string {
	slices.Sort(names)
	var s strings.Builder
	for _, name := range names {
		fmt.Fprintln(&s, "nvidia.com/gpu="+name)
	}
	return s.String()
}

var logLine = regexp.MustCompile(`(?m)^time=.*\n`)

// NVIDIA's toolkit finds the container's GPU, and on the host all of them. What it
// writes is read back by CDI's own library.
func TestTheContainerToolkitDescribesTheContainersGPU(t *testing.T) {
	n, both := neighbours(t)
	for i, said := range inBoth(n, both, "/bin/sh", "-ec",
		`cd "$(mktemp -d)" # the two share a root file system
		/go-clients/nvidia-ctk --quiet cdi generate --output nvidia.yaml
		/go-clients/nvidia-ctk --quiet cdi list --spec-dir .
		cat nvidia.yaml`) {
		list, spec, _ := strings.Cut(said, "---\n")
		uuid := uuidOf(n, both[i])
		if want := devices("0", uuid, "all"); list != want {
			t.Errorf("%s: the spec has\n%snot\n%s", both[i].ID, list, want)
		}
		library := filepath.Join(gpu.LibraryDirs(runtime.GOARCH)[0], "libcuda.so.999.10")
		for _, text := range []string{"--gpu-id\n", "- " + uuid + "\n", "hostPath: " + library + "\n"} {
			if !strings.Contains(spec, text) {
				t.Errorf("%s: %q is not in\n%s", both[i].ID, text, spec)
			}
		}
	}
	// Without the directories of a driver that is installed, it takes a root.
	root, dir := t.TempDir(), t.TempDir()
	if err := os.CopyFS(filepath.Join(root, gpu.LibraryDirs(runtime.GOARCH)[0]), os.DirFS(filepath.Join(n.Paths.Simulated, "lib"))); err != nil {
		t.Fatal(err)
	}
	ctk := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(n.Ctx, filepath.Join(n.Paths.Tools, goClients, "nvidia-ctk"), append([]string{"--quiet", "cdi"}, args...)...)
		cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "SIMGPU_MACHINE=" + n.Daemon.Machine}
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("nvidia-ctk cdi %v: %v\n%s", args, err, out)
		}
		return logLine.ReplaceAllString(string(out), "")
	}
	ctk("generate", "--driver-root", root, "--output", filepath.Join(dir, "nvidia.yaml"))
	if list, want := ctk("list", "--spec-dir", dir), devices("0", "1", uuidOf(n, both[0]), uuidOf(n, both[1]), "all"); list != want {
		t.Errorf("on the host the spec has\n%snot\n%s", list, want)
	}
	if t.Failed() {
		return
	}
	rows.add(t, row{
		Client: "nvidia-ctk", Version: version(n, "nvidia-ctk"), Rootfs: "host", Gated: "-", Result: works,
		Does: "cdi generate, then cdi list: the container's own GPU; without device nodes, which a simulated GPU has none of",
	})
}

// The lists that go-nvml comes with show the container's own GPU, and on it the
// process of the container, by its number in there and with what it uses.
func TestGoNVMLListsTheContainersGPU(t *testing.T) {
	n, both := neighbours(t)
	for i, said := range inBoth(n, both, "/go-clients/devices") {
		if want := fmt.Sprintf("uuid=%s\n", uuidOf(n, both[i])); !strings.HasPrefix(said, want) || strings.Count(said, "uuid=") != 1 {
			t.Errorf("%s sees %q, not %q", both[i].ID, said, want)
		}
	}
	for i, said := range inBoth(n, both, "/go-clients/compute-processes") {
		v, err := n.VGPU(both[i].ID)
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("Found 1 processes on device 0\n\t[ 0] ProcessInfo: {Pid:1 UsedGpuMemory:%d ", v.GetMemory()[0].GetUsedBytes())
		if !strings.HasPrefix(said, want) || strings.Count(said, "\n") != 2 {
			t.Errorf("%s sees %q, not %q", both[i].ID, said, want)
		}
	}
	if t.Failed() {
		return
	}
	for program, does := range map[string]string{
		"devices":           "the container's own GPU by its UUID, its addressing mode",
		"compute-processes": "the container's own process on it, by its pid there, and its memory",
	} {
		rows.add(t, row{Client: "go-nvml, " + program, Version: version(n, program), Rootfs: "host", Does: does, Gated: "-", Result: works})
	}
}
