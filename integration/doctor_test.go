// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bufio"
	"encoding/json"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// finding is one line of what vgpu doctor says.
type finding struct{ Check, Result, Detail string }

// examined is what the doctor says of a node, whose containerd is looked at in the
// place of the machine's.
func (n *node) examined(v harness.Version) (all []finding) {
	n.T.Helper()
	bin, err := n.Paths.ContainerdBin(v)
	if err != nil {
		n.T.Fatal(err)
	}
	// Its exit code says that there are faults, with a reason.
	out, _ := n.Daemon.CLI(n.Ctx, "doctor", "--output", "json", "--containerd", filepath.Join(bin, "containerd"),
		"--containerd-config", filepath.Join(n.Containerd.Dir, "config.toml"), "--containerd-address", n.Containerd.Socket,
		"--ctr", filepath.Join(bin, "ctr"), "--runc", filepath.Join(n.Paths.RuncBin(), "runc"))
	if err := json.Unmarshal([]byte(out), &all); err != nil {
		n.T.Fatalf("%v: %s", err, out)
	}
	return all
}

// A program outside of any container, on the driver itself, is found by the
// driver's list of processes, as long as it is there.
func TestTheDoctorNamesWhoUsesAGPUWithoutAVGPU(t *testing.T) {
	paths, err := harness.DefaultPaths()
	if err != nil {
		t.Fatal(err)
	}
	d, err := harness.StartDaemon(t.Context(), paths, harness.DaemonOptions{Dir: t.TempDir()})
	if d != nil {
		t.Cleanup(func() { _ = d.Process().Stop() })
	}
	if err != nil {
		t.Fatal(err)
	}
	well := func(when string) {
		t.Helper()
		if found := unmanaged(t, d); len(found) != 1 || found[0].Result != "ok" {
			t.Errorf("%s: %+v", when, found)
		}
	}
	well("before")

	hog := exec.Command(filepath.Join(paths.Workload, "hog"), "--ms", "0", "--kernels", paths.Kernels)
	hog.Env = []string{"SIMGPU_MACHINE=" + d.Machine, "LD_LIBRARY_PATH=" + filepath.Join(paths.Simulated, "lib")}
	out, err := hog.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := hog.Start(); err != nil {
		t.Fatal(err)
	}
	end := func() { _ = hog.Process.Kill(); _ = hog.Wait() }
	defer end()
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || line != "running\n" {
		t.Fatalf("%q, %v", line, err)
	}
	if found := unmanaged(t, d); !slices.Equal(pids(found), []int{hog.Process.Pid}) || found[0].Process.Command != "hog" || found[0].Process.VGPU != "" {
		t.Errorf("beside it: %+v", found)
	}
	end()
	well("after it")
}
