// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// TestNVMLClients drives nvidia-ml-py, gpustat and nvitop, which nobody here
// wrote: they list both GPUs and the process that uses one.
func TestNVMLClients(t *testing.T) {
	packages, err := filepath.Abs("../../.tools/nvml-clients")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(packages); err != nil {
		t.Fatalf("the clients are missing: run integration/setup/setup.sh test (%v)", err)
	}
	m := newMachine(t, "--gpus", "2", "--memory", "1Gi", "--context-memory", "16Mi", "--model", "Test GPU")
	holder := m.command(false, "endless", strconv.Itoa(100<<20))
	m.start(holder)
	defer func() { _ = holder.Process.Kill(); _ = holder.Wait() }()
	python := func(t *testing.T, args ...string) string {
		t.Helper()
		cmd := exec.Command("/usr/bin/python3", args...)
		cmd.Env = append(os.Environ(), "SIMGPU_MACHINE="+m.dir, "LD_LIBRARY_PATH="+filepath.Join(built.root, "lib"),
			"PYTHONPATH="+packages, "PYTHONIOENCODING=utf-8", "HOME="+t.TempDir(), "COLUMNS=120", "TERM=dumb")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}

	for _, client := range []struct {
		description string
		args        []string
		want        []string // besides two GPUs and the process
	}{
		{"nvidia-ml-py", []string{"testdata/nvml_client.py"}, []string{"driver 999.10", "34 C, 60 of 400 W, P0, bus width 5120, x16"}},
		{"gpustat", []string{"-m", "gpustat", "--no-color", "-a", "-p"}, []string{"34°C", "60 / 400 W", "120 /  1024 MB"}},
		{"nvitop", []string{"-m", "nvitop", "-1", "-U", "--colorful"}, []string{"Driver Version: 999.10", "120.0MiB / 1024MiB"}},
	} {
		t.Run(client.description, func(t *testing.T) {
			out := python(t, client.args...)
			if n := strings.Count(out, "Test GPU"); n != 2 {
				t.Errorf("%d GPUs in\n%s", n, out)
			}
			for _, want := range append(client.want, fmt.Sprint(holder.Process.Pid)) {
				if !strings.Contains(out, want) {
					t.Errorf("no %q in\n%s", want, out)
				}
			}
		})
	}
}
