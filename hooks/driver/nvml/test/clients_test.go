// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// Clients that nobody here wrote find in our library what they look for.

func TestNVIDIAsPythonClient(t *testing.T) {
	module, err := filepath.Abs("../../../../.tools/nvml-clients")
	if err == nil {
		module, err = filepath.EvalSymlinks(module)
	}
	if err != nil {
		t.Fatalf("NVIDIA's Python client is not there, run make setup-test: %v", err)
	}
	script, err := filepath.Abs("testdata/client.py")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("PYTHONPATH", module)
	t.Setenv("PYTHONDONTWRITEBYTECODE", "1")
	client(t, "/usr/bin/python3", script)
}

func TestNVIDIAsGoClient(t *testing.T) {
	t.Setenv(role, "client")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	client(t, self)
}

// client runs a client in a vGPU with one of the two GPUs.
func client(t *testing.T, args ...string) {
	t.Helper()
	m := newMachine(t, 2)
	gpu := gpusOf(t, m)[1].uuid()
	v := newVgpud(t, gpu)
	v.set(gpu, usage{limit: 600 * mib, used: 200 * mib, heldPPM: 420_000, processes: []wire.Process{{PID: 1, Bytes: 150 * mib}}})
	want := []string{
		"count 1",
		"name Test GPU (vGPU)",
		fmt.Sprintf("memory %d %d %d", 600*mib, 200*mib, 400*mib),
		fmt.Sprintf("memory v2 %d %d %d 0", 600*mib, 200*mib, 400*mib),
		"use 42",
		fmt.Sprintf("process 1 %d True", 150*mib),
	}
	if got := start(t, v, m, args...).all(); strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// goClient is the Go client: it says what client.py says.
func goClient() error {
	if r := nvml.Init(); r != nvml.SUCCESS {
		return r
	}
	n, r := nvml.DeviceGetCount()
	fmt.Println("count", n)
	d, r1 := nvml.DeviceGetHandleByIndex(0)
	if r != nvml.SUCCESS || r1 != nvml.SUCCESS {
		return fmt.Errorf("no device: %w, %w", r, r1)
	}
	name, r := d.GetName()
	m, r1 := d.GetMemoryInfo()
	m2, r2 := d.GetMemoryInfo_v2()
	u, r3 := d.GetUtilizationRates()
	list, r4 := d.GetComputeRunningProcesses()
	for _, r := range []nvml.Return{r, r1, r2, r3, r4} {
		if r != nvml.SUCCESS {
			return r
		}
	}
	fmt.Println("name", name)
	fmt.Println("memory", m.Total, m.Used, m.Free)
	fmt.Println("memory v2", m2.Total, m2.Used, m2.Free, m2.Reserved)
	fmt.Println("use", u.Gpu)
	for _, p := range list {
		if name, r := nvml.SystemGetProcessName(int(p.Pid)); r != nvml.SUCCESS || name == "" {
			return fmt.Errorf("process %d: %w", p.Pid, r)
		}
		fmt.Println("process", p.Pid, p.UsedGpuMemory, "True")
	}
	if r := d.SetPersistenceMode(nvml.FEATURE_ENABLED); r != nvml.ERROR_NO_PERMISSION {
		return fmt.Errorf("SetPersistenceMode: %w", r)
	}
	if r := nvml.Shutdown(); r != nvml.SUCCESS {
		return r
	}
	fmt.Println("done")
	return nil
}
