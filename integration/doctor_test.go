// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

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
	examine := func() (found []string) {
		t.Helper()
		// Its exit code says that there are faults, with a reason.
		out, _ := d.CLI(t.Context(), "doctor", "--output", "json")
		var all []struct{ Check, Result, Detail string }
		if err := json.Unmarshal([]byte(out), &all); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, f := range all {
			if f.Check == "processes" {
				found = append(found, f.Result+" "+f.Detail)
			}
		}
		return found
	}
	if found := examine(); len(found) != 1 || !strings.HasPrefix(found[0], "ok ") {
		t.Errorf("before: %q", found)
	}

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
	if found := examine(); len(found) != 1 || !strings.HasPrefix(found[0], fmt.Sprintf(`fault process %d ("hog", `, hog.Process.Pid)) {
		t.Errorf("beside it: %q", found)
	}
	end()
	if found := examine(); len(found) != 1 || !strings.HasPrefix(found[0], "ok ") {
		t.Errorf("after it: %q", found)
	}
}
