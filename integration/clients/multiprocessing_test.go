// SPDX-License-Identifier: Apache-2.0

package clients

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// multiprocessing starts 3 children by a method of Python's, after CUDA was used.
func (c *crowd) multiprocessing(method string, clients int, does string) *member {
	c.T.Helper()
	return c.add(harness.Spec{ID: method, Args: []string{"/usr/bin/python3", "/clients/start.py", method, "3"}}, clients,
		row{Client: "multiprocessing (Debian's Python), " + method, Does: does})
}

// A child that was spawned, or forked by a server that has used no CUDA, is a
// client like others.
func TestPythonStartsProcessesAfterCUDAWasUsed(t *testing.T) {
	c := newCrowd(t)
	c.multiprocessing("spawn", 4, "sums in the parent, which used numba before, and in 3 children")
	c.multiprocessing("forkserver", 4, "sums in the parent, which used numba before, and in 3 children")
	c.all()
}

// A child that was forked has no driver: the same answers as without us, at once.
func TestPythonForksAfterCUDAWasUsed(t *testing.T) {
	c := newCrowd(t)
	dir := t.TempDir()
	machine := filepath.Join(dir, "machine")
	c.do(filepath.Join(c.Paths.Simulated, "bin", "simgpu"), "create", "--gpus", "1", machine)
	if err := os.WriteFile(filepath.Join(dir, "now"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(c.Ctx, harnesstest.Patience)
	defer cancel()
	bare := exec.CommandContext(ctx, "/usr/bin/python3", filepath.Join(c.programs, "start.py"), "fork", "3")
	bare.Env = []string{"SIMGPU_MACHINE=" + machine, "LD_LIBRARY_PATH=" + filepath.Join(c.Paths.Simulated, "lib"), "MEETING=" + dir}
	var stderr bytes.Buffer
	bare.Stderr = &stderr
	bare.WaitDelay = time.Second // its children have its output, too
	want, err := bare.Output()
	if err != nil {
		t.Fatalf("without us: %v\n%s", err, &stderr)
	}

	one := c.multiprocessing("fork", 1, "sums in the parent, which used numba before; 3 children get CUDA_ERROR_NOT_INITIALIZED, as on the driver alone")
	c.add(harness.Spec{ID: "beside", Args: []string{"/clients/linked"}}, 1, row{})
	c.all()
	if one.finished != string(want) {
		t.Errorf("it says\n%s\nand without us\n%s", one.finished, want)
	}
	for _, answer := range []string{`"cuInit": 3,`, `"cuLaunchKernel": 3,`, `"numba": "CudaDriverError: CUDA initialized before forking"`} {
		if !strings.Contains(string(want), answer) {
			t.Errorf("without us a child is not told %s: %s", answer, want)
		}
	}
}
