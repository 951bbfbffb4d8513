// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/version"
)

// shared compiles a shared object that exports functions.
func shared(t *testing.T, functions ...string) string {
	t.Helper()
	dir := t.TempDir()
	source, so := filepath.Join(dir, "l.c"), filepath.Join(dir, "l.so")
	text := ""
	for _, f := range functions {
		text += "int " + f + "(void) { return 0; }\n"
	}
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("cc", "-shared", "-fPIC", "-o", so, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return so
}

// diagnosis is what the doctor finds, by check.
func diagnosis(t *testing.T, f vgpud) (code int, found map[string][]finding) {
	t.Helper()
	wellMachine(t, f.libraries)
	code, stdout, stderr := vgpu(t, "doctor", "--output", "json", "--address", serve(t, f))
	var all []finding
	if err := json.Unmarshal([]byte(stdout), &all); err != nil {
		t.Fatalf("%v: %s%s", err, stdout, stderr)
	}
	found = make(map[string][]finding)
	for _, f := range all {
		found[f.Check] = append(found[f.Check], f)
		if (f.Result == checkFault) != (f.Advice != "") {
			t.Errorf("a fault, and nothing else, has advice: %+v", f)
		}
	}
	return code, found
}

func TestAWellMachine(t *testing.T) {
	l := &v1.DriverLibrary{Name: "libcuda.so.1", Driver: shared(t, "cuInit", "cuOdd"), Library: shared(t, "cuInit")}
	own := &v1.ListProcessesResponse{Processes: []*v1.Process{{Gpu: "GPU-1", Pid: 7, Command: "train", Vgpu: "0123456789abcdef"}}}
	code, found := diagnosis(t, vgpud{well: true, version: version.Version, libraries: []*v1.DriverLibrary{l}, processes: own})
	if code != 0 || len(found) != len(checks()) {
		t.Errorf("exit code %d: %+v", code, found)
	}
	for _, all := range found {
		for _, f := range all {
			if f.Result != checkOK {
				t.Errorf("%+v", f)
			}
		}
	}
	if d := found["names"][0].Detail; !strings.Contains(d, "cuOdd") {
		t.Error(d)
	}
}

func TestEachFaultIsFound(t *testing.T) {
	ours, theirs := shared(t, "cuInit"), shared(t, "cuInit", "cuLaunchNew")
	well := func() vgpud {
		return vgpud{well: true, version: version.Version, libraries: []*v1.DriverLibrary{{Name: "libcuda.so.1", Driver: ours, Library: ours}}}
	}
	for check, tc := range map[string]struct {
		make func(*vgpud)
		says []string
	}{
		"vgpud":   {func(f *vgpud) { f.version = "v0" }, []string{"vgpud is version v0"}},
		"driver":  {func(f *vgpud) { f.libraries[0].Driver = "/does/not/exist" }, []string{"/does/not/exist"}},
		"library": {func(f *vgpud) { f.libraries[0].Library = "/etc/passwd" }, []string{"/etc/passwd"}},
		"names":   {func(f *vgpud) { f.libraries[0].Driver = theirs }, []string{"cuLaunchNew"}},
		"gpus":    {func(f *vgpud) { f.sick = true }, []string{"GPU-1 takes no grants: Xid 79"}},
		"gate":    {func(f *vgpud) { f.well = false }, []string{"0123456789abcdef (default/train): 3 look-ups"}},
		"processes": {func(f *vgpud) {
			f.processes = &v1.ListProcessesResponse{Processes: []*v1.Process{
				{Gpu: "GPU-1", Pid: 7, Command: "train", Vgpu: "0123456789abcdef"},
				{Gpu: "GPU-1", Pid: 8, Command: "odd\x1b[2J", Cgroup: "/user.slice", MemoryBytes: 1 << 30},
				{
					Gpu: "GPU-1", Pid: 9, Command: "python3", Cgroup: "/k8s.io/c1", MemoryBytes: 3 << 20, Inside: "0123456789abcdef",
					Container: &v1.Container{Namespace: "k8s.io", Id: "c1"}, Pod: &v1.Pod{Namespace: "ml", Name: "train-0"},
				},
				{Gpu: "GPU-1", Pid: 10, MemoryBytes: 1 << 20, Gone: true},
			}}
		}, []string{
			`process 8 ("odd\x1b[2J", cgroup "/user.slice") uses 1024 MiB of GPU-1 and is of no vGPU`,
			`process 9 ("python3", cgroup "/k8s.io/c1") of vGPU 0123456789abcdef, container k8s.io/c1, pod ml/train-0, uses 3 MiB of GPU-1 past the library`,
			"process 10 is gone, and the driver still counts 1 MiB of GPU-1 for it",
		}},
		"connections": {func(f *vgpud) { f.well = false }, []string{"0123456789abcdef (default/train): 1 connections"}},
	} {
		f := well()
		tc.make(&f)
		code, found := diagnosis(t, f)
		if code != 1 || len(found[check]) != len(tc.says) {
			t.Fatalf("%s: exit code %d, %+v", check, code, found[check])
		}
		for i, says := range tc.says {
			if got := found[check][i]; got.Result != checkFault || !strings.Contains(got.Detail, says) {
				t.Errorf("%s: %+v", check, got)
			}
		}
	}
}

// A loader of OpenCL that is too old for layers, or could not load ours.
func TestALoaderWithoutTheLayerIsNamed(t *testing.T) {
	mapped := func(name string) {
		t.Helper()
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, make([]byte, 1), 0o600); err != nil {
			t.Fatal(err)
		}
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		b, err := unix.Mmap(int(f.Fd()), 0, 1, unix.PROT_READ, unix.MAP_PRIVATE)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = unix.Munmap(b) })
	}
	says := func() string {
		t.Helper()
		_, found := diagnosis(t, vgpud{well: true, version: version.Version, processes: &v1.ListProcessesResponse{Processes: []*v1.Process{
			{Gpu: "GPU-1", Pid: uint32(os.Getpid()), Command: "clpeak", Inside: "0123456789abcdef", Container: &v1.Container{Namespace: "k8s.io", Id: "c1"}},
		}}})
		if f := found["processes"]; len(f) == 1 && f[0].Result == checkFault {
			return f[0].Detail
		}
		t.Fatalf("%+v", found["processes"])
		return ""
	}
	const loader = "its OpenCL loader has not loaded our layer"
	if d := says(); strings.Contains(d, loader) {
		t.Errorf("without a loader: %s", d)
	}
	mapped("libOpenCL.so.1.0.0")
	if d := says(); !strings.Contains(d, loader) {
		t.Errorf("with a loader: %s", d)
	}
	mapped("libvgpu-opencl.so")
	if d := says(); strings.Contains(d, loader) {
		t.Errorf("with the layer: %s", d)
	}
}

func TestWhoUsesGPUsMayNotBeKnown(t *testing.T) {
	for says, processes := range map[string]*v1.ListProcessesResponse{
		"it is an older one": nil,
		"the driver does not say which processes use GPU-1": {SilentGpus: []string{"GPU-1"}},
	} {
		_, found := diagnosis(t, vgpud{well: true, version: version.Version, processes: processes})
		if f := found["processes"]; len(f) != 1 || f[0].Result != checkSkipped || !strings.Contains(f[0].Detail, says) {
			t.Errorf("%+v", f)
		}
	}
}

func TestANewNVMLFunctionThatChangesAGPUIsAFault(t *testing.T) {
	l := &v1.DriverLibrary{Name: "libnvidia-ml.so.1", Driver: shared(t, "nvmlInit", "nvmlDeviceGetNew", "nvmlDeviceSetNew"), Library: shared(t, "nvmlInit")}
	_, found := diagnosis(t, vgpud{well: true, version: version.Version, libraries: []*v1.DriverLibrary{l}})
	if f := found["names"]; len(f) != 1 || f[0].Result != checkFault || !strings.Contains(f[0].Detail, "exports nvmlDeviceSetNew,") {
		t.Errorf("%+v", f)
	}
}

func TestWithoutVgpudTheRestIsSkipped(t *testing.T) {
	wellMachine(t, nil)
	code, stdout, stderr := vgpu(t, "doctor", "--address", filepath.Join(t.TempDir(), "none"))
	if code != 1 || !strings.HasPrefix(stdout, "fault    vgpud        vgpud does not run: nobody answers") ||
		!strings.Contains(stdout, "-> Start it with") || !strings.Contains(stdout, "skipped  names") || !strings.Contains(stderr, "there is a fault") {
		t.Errorf("exit code %d: %s%s", code, stdout, stderr)
	}
}
