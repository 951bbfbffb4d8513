// SPDX-License-Identifier: Apache-2.0

package source

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"tags.cncf.io/container-device-interface/specs-go"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/gpu"
)

func TestOpenSaysWhatIsAllowed(t *testing.T) {
	for _, gpus := range []string{"", "cuda", "sim", "sim:", "sim:0", "sim:17", "sim:-1", "sim:x"} {
		_, err := Open(Config{GPUs: gpus})
		if err == nil || !strings.Contains(err.Error(), "auto, nvml, or sim:N") {
			t.Errorf("%q: %v", gpus, err)
		}
	}
}

func TestAMissingSimulatedDriverIsNamed(t *testing.T) {
	root := t.TempDir()
	_, err := Open(Config{GPUs: "sim:1", SimulatedRoot: root, Machine: filepath.Join(root, "m")})
	if err == nil || !strings.Contains(err.Error(), "simulated.root") || !strings.Contains(err.Error(), root) {
		t.Fatal(err)
	}
}

func TestALibraryThatIsNoNVMLIsRefused(t *testing.T) {
	err := check("libc.so.6")
	if err == nil || !strings.Contains(err.Error(), "not an NVML that vgpud can use") {
		t.Fatal(err)
	}
}

func TestCollectSortsTheDriversFiles(t *testing.T) {
	d := gpu.Driver{Version: "580.1"}
	mount := func(path string, options ...string) *specs.Mount {
		return &specs.Mount{HostPath: "/host" + path, ContainerPath: path, Options: options}
	}
	err := collect(&d, []*specs.ContainerEdits{
		{
			Mounts: []*specs.Mount{
				mount("/usr/lib/x86_64-linux-gnu/libcuda.so.580.1"),
				mount("/usr/lib64/libnvidia-ml.so.580.1"),
				mount("/usr/lib/x86_64-linux-gnu/libnvidia-ptxjitcompiler.so.580.1"),
				mount("/usr/lib/x86_64-linux-gnu/vdpau/libvdpau_nvidia.so.580.1", "ro", "nosuid", "nodev", "rbind", "rprivate"),
				mount("/usr/bin/nvidia-smi", "ro"),
				mount("/run/nvidia-persistenced/socket", "rw", "noexec"),
			},
			DeviceNodes: []*specs.DeviceNode{{Path: "/dev/nvidiactl", HostPath: "/dev/null"}},
			Env:         []string{"A=1"},
		},
		{DeviceNodes: []*specs.DeviceNode{
			{Path: "/dev/nvidiactl", HostPath: "/dev/null"},
			{Path: "/dev/zero", Permissions: "rw"},
		}},
	})
	if err != nil {
		t.Fatal(err)
	}
	want := gpu.Driver{
		Version: "580.1",
		CUDA:    "/host/usr/lib/x86_64-linux-gnu/libcuda.so.580.1",
		NVML:    "/host/usr/lib64/libnvidia-ml.so.580.1",
		Libraries: []gpu.Library{{
			Source: "/host/usr/lib/x86_64-linux-gnu/libnvidia-ptxjitcompiler.so.580.1",
			Names:  []string{"libnvidia-ptxjitcompiler.so.580.1"},
		}},
		Mounts: []*v1.Mount{
			{
				Source: "/host/usr/lib/x86_64-linux-gnu/vdpau/libvdpau_nvidia.so.580.1", Destination: "/usr/lib/x86_64-linux-gnu/vdpau/libvdpau_nvidia.so.580.1",
				Type: "bind", Options: []string{"bind", "nosuid", "nodev", "rprivate", "ro"},
			},
			{Source: "/host/usr/bin/nvidia-smi", Destination: "/usr/bin/nvidia-smi", Type: "bind", Options: []string{"bind", "nosuid", "nodev", "ro"}},
			{
				Source: "/host/run/nvidia-persistenced/socket", Destination: "/run/nvidia-persistenced/socket", Type: "bind",
				Options: []string{"bind", "nosuid", "nodev", "noexec"},
			},
		},
		Devices: []*v1.Device{
			{Path: "/dev/nvidiactl", Type: "c", Major: 1, Minor: 3, FileMode: 0o666, Permissions: "rwm"},
			{Path: "/dev/zero", Type: "c", Major: 1, Minor: 5, FileMode: 0o666, Permissions: "rw"},
		},
		Env: []string{"A=1"},
	}
	if diff := cmp.Diff(want, d, protocmp.Transform()); diff != "" {
		t.Fatalf("(-want +got)\n%s", diff)
	}
}

func TestCollectNeedsTheCUDADriver(t *testing.T) {
	err := collect(&gpu.Driver{Version: "580.1"}, nil)
	if err == nil || !strings.Contains(err.Error(), "libcuda.so.580.1") {
		t.Fatal(err)
	}
}

func TestALibraryIsFoundByItsSonameToo(t *testing.T) {
	// A library that every machine with cgo has, behind its link.
	path, err := versioned("/lib/x86_64-linux-gnu/libc.so.6")
	if err != nil {
		t.Fatal(err)
	}
	l := library(path, "libc-2.36.so")
	if diff := cmp.Diff([]string{"libc-2.36.so", "libc.so.6"}, l.Names); diff != "" {
		t.Fatal(diff)
	}
}

// simulatedRoot is where the simulated driver was built (make build);
// VGPU_SIMGPU_ROOT names another place.
func simulatedRoot(t *testing.T) string {
	t.Helper()
	root := os.Getenv("VGPU_SIMGPU_ROOT")
	if root == "" {
		var err error
		if root, err = filepath.Abs("../../../build/simgpu"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "bin", "simgpu")); err != nil {
		t.Fatalf("the simulated driver is not built, run make build: %v", err)
	}
	return root
}

// The GPUs of the simulated driver are listed through the real NVML bindings.
func TestSimulatedGPUs(t *testing.T) {
	root := simulatedRoot(t)
	machine := filepath.Join(t.TempDir(), "machine")
	inv, err := Open(Config{GPUs: "sim:2", SimulatedRoot: root, Machine: machine})
	if err != nil {
		t.Fatal(err)
	}
	defer inv.Close()
	gpus, d := inv.GPUs(), inv.Driver()
	if inv.Name() != "sim:2" || len(gpus) != 2 || gpus[0].UUID == gpus[1].UUID || !strings.HasPrefix(gpus[0].UUID, "GPU-") {
		t.Errorf("%s: %v", inv.Name(), gpus)
	}
	for _, g := range gpus {
		if g.Model == "" || g.MemoryBytes == 0 || g.PCIBusID == "" || g.Architecture != "Ampere" || g.ComputeCapability != "8.0" {
			t.Errorf("%+v", g)
		}
	}
	if filepath.Base(d.CUDA) != "libcuda.so."+d.Version || filepath.Base(d.NVML) != "libnvidia-ml.so."+d.Version {
		t.Errorf("%+v", d)
	}
	edits, err := gpu.TakeOver{CUDA: "/l.so", NVML: "/n.so", Dirs: []string{"/usr/lib64"}}.Edits(d, "/run/vgpu/c/x")
	if err != nil {
		t.Fatal(err)
	}
	last := edits.GetMounts()[len(edits.GetMounts())-1]
	if last.GetSource() != machine || last.GetDestination() != "/dev/simgpu" {
		t.Errorf("%v", last)
	}
}

// Its root may be a link, as it is where vgpu install has placed it.
func TestASimulatedDriverIsFoundBehindALink(t *testing.T) {
	root := filepath.Join(t.TempDir(), "simgpu")
	if err := os.Symlink(simulatedRoot(t), root); err != nil {
		t.Fatal(err)
	}
	inv, err := Open(Config{GPUs: "sim:1", SimulatedRoot: root, Machine: filepath.Join(t.TempDir(), "machine")})
	if err != nil {
		t.Fatal(err)
	}
	defer inv.Close()
	if d := inv.Driver(); filepath.Base(d.CUDA) != "libcuda.so."+d.Version {
		t.Errorf("%+v", d)
	}
}

// The build for musl counts if it is whole and of the driver's own version.
func TestTheMuslBuildOfTheSimulatedDriver(t *testing.T) {
	const cuda, ml = "libcuda.so.999.10", "libnvidia-ml.so.999.10"
	for name, tc := range map[string]struct {
		cuda, ml string // the files behind the sonames
		found    bool
	}{
		"both":                       {cuda, ml, true},
		"none":                       {"", "", false},
		"one of them":                {cuda, "", false},
		"of another version":         {"libcuda.so.998", "libnvidia-ml.so.998", false},
		"one is of another version":  {cuda, "libnvidia-ml.so.998", false},
		"a link that leads nowhere":  {"gone", ml, false},
		"a file that is not a build": {"libcuda.so.1", ml, false},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			dir := filepath.Join(root, "musl", "lib")
			if err := os.MkdirAll(dir, 0o755); err != nil {
				t.Fatal(err)
			}
			for soname, file := range map[string]string{"libcuda.so.1": tc.cuda, "libnvidia-ml.so.1": tc.ml} {
				if file == "" {
					continue
				}
				if file != "gone" {
					if err := os.WriteFile(filepath.Join(dir, file), nil, 0o600); err != nil {
						t.Fatal(err)
					}
				}
				if file != soname {
					if err := os.Symlink(file, filepath.Join(dir, soname)); err != nil {
						t.Fatal(err)
					}
				}
			}
			gotCUDA, gotML := muslBuild(root, "/host/"+cuda, "/host/"+ml)
			var wantCUDA, wantML string
			if tc.found {
				wantCUDA, wantML = filepath.Join(dir, cuda), filepath.Join(dir, ml)
			}
			if gotCUDA != wantCUDA || gotML != wantML {
				t.Errorf("found %q and %q, want %q and %q", gotCUDA, gotML, wantCUDA, wantML)
			}
		})
	}
}
