// SPDX-License-Identifier: Apache-2.0

package gpu

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

var takeOver = TakeOver{
	CUDA: "/opt/vgpu/libvgpu-cuda.so", NVML: "/opt/vgpu/libvgpu-nvml.so",
	Dirs: []string{"/usr/lib/x86_64-linux-gnu", "/usr/lib64"},
}

func driver() Driver {
	return Driver{Version: "580.65.06", CUDA: "/host/libcuda.so.580.65.06", NVML: "/host/libnvidia-ml.so.580.65.06"}
}

func lines(e *v1.Edits) []string {
	var out []string
	for _, m := range e.GetMounts() {
		out = append(out, fmt.Sprintf("%s <- %s %s", m.GetDestination(), m.GetSource(), strings.Join(m.GetOptions(), ",")))
	}
	for _, d := range e.GetDevices() {
		out = append(out, "device "+d.GetPath())
	}
	for _, v := range e.GetEnv() {
		out = append(out, "env "+v)
	}
	return out
}

func TestOurLibrariesHaveEveryNameOfTheDrivers(t *testing.T) {
	e, err := takeOver.Edits(driver(), "/run/vgpu/c/x")
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"/.vgpu <- /run/vgpu/c/x bind,ro,nosuid,nodev,noexec",
		"/.vgpu/libcuda.so <- /host/libcuda.so.580.65.06 bind,ro,nosuid,nodev",
		"/.vgpu/libnvidia-ml.so <- /host/libnvidia-ml.so.580.65.06 bind,ro,nosuid,nodev",
		"/usr/lib/x86_64-linux-gnu/libcuda.so.580.65.06 <- /opt/vgpu/libvgpu-cuda.so bind,ro,nosuid,nodev",
		"/usr/lib/x86_64-linux-gnu/libcuda.so.1 <- /opt/vgpu/libvgpu-cuda.so bind,ro,nosuid,nodev",
		"/usr/lib/x86_64-linux-gnu/libcuda.so <- /opt/vgpu/libvgpu-cuda.so bind,ro,nosuid,nodev",
		"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.65.06 <- /opt/vgpu/libvgpu-nvml.so bind,ro,nosuid,nodev",
		"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1 <- /opt/vgpu/libvgpu-nvml.so bind,ro,nosuid,nodev",
		"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so <- /opt/vgpu/libvgpu-nvml.so bind,ro,nosuid,nodev",
		"/usr/lib64/libcuda.so.580.65.06 <- /opt/vgpu/libvgpu-cuda.so bind,ro,nosuid,nodev",
		"/usr/lib64/libcuda.so.1 <- /opt/vgpu/libvgpu-cuda.so bind,ro,nosuid,nodev",
		"/usr/lib64/libcuda.so <- /opt/vgpu/libvgpu-cuda.so bind,ro,nosuid,nodev",
		"/usr/lib64/libnvidia-ml.so.580.65.06 <- /opt/vgpu/libvgpu-nvml.so bind,ro,nosuid,nodev",
		"/usr/lib64/libnvidia-ml.so.1 <- /opt/vgpu/libvgpu-nvml.so bind,ro,nosuid,nodev",
		"/usr/lib64/libnvidia-ml.so <- /opt/vgpu/libvgpu-nvml.so bind,ro,nosuid,nodev",
		"env NVIDIA_VISIBLE_DEVICES=void",
	}
	if diff := cmp.Diff(want, lines(e)); diff != "" {
		t.Fatalf("(-want +got)\n%s", diff)
	}
}

func TestTheRealLibrariesAreReachableAtOnePathEach(t *testing.T) {
	d := driver()
	d.Libraries = []Library{
		{Source: "/host/libcuda.so.580.65.06", Names: []string{"libcuda.so.580.65.06", "libcuda.so.1"}},
		{Source: "/host/libnvidia-ptxjitcompiler.so.580.65.06", Names: []string{"libnvidia-ptxjitcompiler.so.580.65.06", "libnvidia-ptxjitcompiler.so.1"}},
	}
	d.Mounts = []*v1.Mount{
		{Source: "/host/libcuda.so.580.65.06", Destination: "/somewhere/else/libcuda.so.580.65.06"},
		{Source: "/host/libnvidia-ml.so.580.65.06", Destination: "/somewhere/else/libnvidia-ml.so.1"},
		{Source: "/host/nvidia-smi", Destination: "/usr/bin/nvidia-smi"},
	}
	d.Env = []string{"NVIDIA_VISIBLE_DEVICES=all", "OTHER=1"}
	d.Devices = []*v1.Device{{Path: "/dev/nvidia0"}}
	e, err := takeOver.Edits(d, "/run/vgpu/c/x")
	if err != nil {
		t.Fatal(err)
	}
	var real, jit []string
	for _, m := range e.GetMounts() {
		switch {
		case m.GetSource() == d.CUDA || m.GetSource() == d.NVML:
			real = append(real, m.GetDestination())
		case strings.Contains(m.GetSource(), "ptxjit"):
			jit = append(jit, m.GetDestination())
		}
	}
	if diff := cmp.Diff([]string{RealCUDA, RealNVML}, real); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{
		"/usr/lib/x86_64-linux-gnu/libnvidia-ptxjitcompiler.so.580.65.06", "/usr/lib/x86_64-linux-gnu/libnvidia-ptxjitcompiler.so.1",
		"/usr/lib64/libnvidia-ptxjitcompiler.so.580.65.06", "/usr/lib64/libnvidia-ptxjitcompiler.so.1",
	}, jit); diff != "" {
		t.Error(diff)
	}
	got := lines(e)
	if diff := cmp.Diff([]string{"/usr/bin/nvidia-smi <- /host/nvidia-smi ", "device /dev/nvidia0", "env OTHER=1", "env NVIDIA_VISIBLE_DEVICES=void"}, got[len(got)-4:]); diff != "" {
		t.Error(diff)
	}
}

func TestTakeOverRefusesWhatItCanNotDo(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Driver, *TakeOver)
		says   string
	}{
		"a driver without a version":     {func(d *Driver, _ *TakeOver) { d.Version = "" }, "driver version"},
		"a version that leaves the name": {func(d *Driver, _ *TakeOver) { d.Version = "../1" }, "driver version"},
		"no real library":                {func(d *Driver, _ *TakeOver) { d.CUDA = "" }, "the driver's libcuda"},
		"a relative library of ours":     {func(_ *Driver, t *TakeOver) { t.CUDA = "build/lib/x.so" }, "the take-over library of libcuda"},
		"no library of ours for NVML":    {func(_ *Driver, t *TakeOver) { t.NVML = "" }, "the take-over library of libnvidia-ml"},
		"nowhere to put it":              {func(_ *Driver, t *TakeOver) { t.Dirs = nil }, "no library directory"},
	} {
		t.Run(name, func(t *testing.T) {
			d, to := driver(), takeOver
			tc.change(&d, &to)
			_, err := to.Edits(d, "/run/vgpu/c/x")
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Fatalf("got %v", err)
			}
		})
	}
}

// OpenCL's loaders find the layer by a list of layers or by a variable, and load it from
// a place that no path leads to.
func TestOpenCLLayerIsFoundByOldAndNewLoaders(t *testing.T) {
	with := takeOver
	with.OpenCL = "/opt/vgpu/libvgpu-opencl.so"
	e, err := with.Edits(driver(), "/run/vgpu/c/x")
	if err != nil {
		t.Fatal(err)
	}
	without, err := takeOver.Edits(driver(), "/run/vgpu/c/x")
	if err != nil {
		t.Fatal(err)
	}
	var more []string
	for _, l := range lines(e) {
		if !slices.Contains(lines(without), l) {
			more = append(more, l)
		}
	}
	want := []string{
		"/.vgpu/libvgpu-opencl.so <- /opt/vgpu/libvgpu-opencl.so bind,ro,nosuid,nodev",
		"/etc/OpenCL/layers/vgpu.lay <- /run/vgpu/c/x/vgpu.lay bind,ro,nosuid,nodev",
		"env OPENCL_LAYERS=/.vgpu/libvgpu-opencl.so",
	}
	if diff := cmp.Diff(want, more); diff != "" {
		t.Error(diff)
	}
}
