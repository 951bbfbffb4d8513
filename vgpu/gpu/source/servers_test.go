// SPDX-License-Identifier: Apache-2.0

package source

import (
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/google/go-cmp/cmp"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/gpu"
	"github.com/vgpu-shim/vgpu/vgpu/gpu/nvmltest"
)

func openServer(t *testing.T, s nvmltest.Server) gpu.Inventory {
	t.Helper()
	i, err := Open(Config{GPUs: "nvml", NVML: s, DriverRoot: s.Root})
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// What NVML and the driver's package have on NVIDIA's own servers is listed: GPUs
// with the device node of each, the driver's libraries under every name that a
// program knows, and no socket of the host's daemons.
func TestServers(t *testing.T) {
	arch := map[string]string{"DGX A100": "8.0", "DGX H100": "9.0", "DGX H200": "9.0", "DGX B200": "10.0"}
	architecture := map[string]string{"DGX A100": "Ampere", "DGX H100": "Hopper", "DGX H200": "Hopper", "DGX B200": "Blackwell"}
	cuda := map[string]string{"DGX A100": "12.4", "DGX H100": "12.4", "DGX H200": "12.4", "DGX B200": "12.6"}
	for _, name := range nvmltest.Names() {
		t.Run(name, func(t *testing.T) {
			s := nvmltest.New(t, name)
			i := openServer(t, s)
			defer i.Close()
			if len(i.GPUs()) != 8 || len(i.GPUs()) != len(s.Devices) {
				t.Fatalf("%d GPUs", len(i.GPUs()))
			}
			for n, g := range i.GPUs() {
				d := s.Device(n)
				want := gpu.GPU{UUID: d.UUID, Model: d.Config.Name, MemoryBytes: d.MemoryInfo.Total, PCIBusID: fmt.Sprintf("0000ABCD:%02X:00.0", n+1), Brand: "nvidia", Architecture: architecture[name], ComputeCapability: arch[name]}
				node := g.Devices
				if g.Devices = nil; !cmp.Equal(want, g) {
					t.Errorf("GPU %d: %s", n, cmp.Diff(want, g))
				}
				if len(node) != 1 || node[0].GetPath() != fmt.Sprint("/dev/nvidia", d.Minor) || node[0].GetMajor() != 195 || node[0].GetMinor() != int64(d.Minor) {
					t.Errorf("GPU %d has the nodes %v, its minor number is %d", n, node, d.Minor)
				}
			}
			driver := i.Driver()
			v, libs := s.DriverVersion, s.Root+nvmltest.LibraryDir
			if driver.CUDAVersion != cuda[name] {
				t.Errorf("the driver serves CUDA %q, want %q", driver.CUDAVersion, cuda[name])
			}
			if driver.Version != v || driver.CUDA != libs+"/libcuda.so."+v || driver.NVML != libs+"/libnvidia-ml.so."+v {
				t.Errorf("the driver is %s, %s, %s", driver.Version, driver.CUDA, driver.NVML)
			}
			names := map[string][]string{}
			for _, l := range driver.Libraries {
				names[path.Base(l.Source)] = l.Names
			}
			want := map[string][]string{}
			for _, l := range [][]string{
				{"libnvidia-ptxjitcompiler.so." + v, "libnvidia-ptxjitcompiler.so.1"},
				{"libnvidia-nvvm.so." + v, "libnvidia-nvvm.so.4"},
				{"libnvidia-gpucomp.so." + v},
				{"libnvidia-opencl.so." + v, "libnvidia-opencl.so.1"},
				{"libnvidia-encode.so." + v, "libnvidia-encode.so.1"},
				{"libnvcuvid.so." + v, "libnvcuvid.so.1", "libnvcuvid.so"},
				{"libnvidia-opticalflow.so." + v, "libnvidia-opticalflow.so.1", "libnvidia-opticalflow.so"},
			} {
				want[l[0]] = l
			}
			if diff := cmp.Diff(want, names); diff != "" {
				t.Errorf("names of libraries (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{
				nvmltest.LibraryDir + "/vdpau/libvdpau_nvidia.so." + v, nvmltest.LibraryDir + "/vdpau/libvdpau_nvidia.so.1",
				"/lib/firmware/nvidia/" + v + "/gsp_ga10x.bin", "/usr/bin/nvidia-debugdump", "/usr/bin/nvidia-smi",
				"/var/run/nvidia-container-devices/void", // keeps NVIDIA's runtime from adding more
			}, destinations(driver.Mounts), sorted); diff != "" {
				t.Errorf("other files (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{"/dev/nvidia-modeset", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidiactl"}, nodes(driver.Devices), sorted); diff != "" {
				t.Errorf("device nodes of no GPU (-want +got):\n%s", diff)
			}
		})
	}
}

var sorted = cmp.Transformer("sorted", func(all []string) map[string]int {
	m := map[string]int{}
	for _, s := range all {
		m[s]++
	}
	return m
})

func destinations(mounts []*v1.Mount) (all []string) {
	for _, m := range mounts {
		all = append(all, m.GetDestination())
	}
	return all
}

func nodes(devices []*v1.Device) (all []string) {
	for _, d := range devices {
		all = append(all, d.GetPath())
	}
	return all
}

// Where a link is there already, it stays.
func TestSystemdFindsTheDevices(t *testing.T) {
	s := nvmltest.New(t, "DGX H200")
	char := filepath.Join(s.Root, "dev", "char")
	if err := os.Mkdir(char, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/theirs", filepath.Join(char, "195:255")); err != nil {
		t.Fatal(err)
	}
	openServer(t, s).Close()
	want := map[string]string{"195:254": "../nvidia-modeset", "195:255": "/dev/theirs", "511:0": "../nvidia-uvm", "511:1": "../nvidia-uvm-tools"}
	for n := range s.Devices {
		want[fmt.Sprint("195:", n)] = fmt.Sprint("../nvidia", n)
	}
	entries, err := os.ReadDir(char)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, e := range entries {
		if got[e.Name()], err = os.Readlink(filepath.Join(char, e.Name())); err != nil {
			t.Error(err)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}

// The mocks have few functions; a library that old is used for what it has.
func TestAServerWhoseLibraryIsOldIsUsedForWhatItHas(t *testing.T) {
	s := nvmltest.New(t, "DGX A100")
	s.Device(3).MemoryInfo.Free = 5 << 30
	i := openServer(t, s)
	defer i.Close()
	if free, err := i.Free(s.Device(3).UUID); err != nil || free != 5<<30 {
		t.Errorf("%d bytes are free, %v", free, err)
	}
	if used, err := i.Processes(s.Device(3).UUID); err != nil || len(used) != 0 {
		t.Errorf("used by %v, %v", used, err)
	}
	changes := watchedBy(t, i)
	for range s.Devices {
		if h := next(t, changes); h.Down != "" || h.Cordon != "" {
			t.Errorf("%+v", h)
		}
	}
}

// A server of today: what its driver tells of one GPU is told of that one.
func TestAServersGPUsAreWatched(t *testing.T) {
	s := nvmltest.New(t, "DGX H100")
	events := make(chan nvml.EventData)
	s.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) {
		return &mock.EventSet{
			WaitFunc: func(uint32) (nvml.EventData, nvml.Return) {
				select {
				case e := <-events:
					return e, nvml.SUCCESS
				case <-time.After(10 * time.Millisecond):
					return nvml.EventData{}, nvml.ERROR_TIMEOUT
				}
			},
			FreeFunc: func() nvml.Return { return nvml.SUCCESS },
		}, nvml.SUCCESS
	}
	for n := range s.Devices {
		d := s.Device(n)
		d.GetSupportedEventTypesFunc = func() (uint64, nvml.Return) { return nvml.EventTypeXidCriticalError, nvml.SUCCESS }
		d.RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return nvml.SUCCESS }
		d.GetComputeModeFunc = func() (nvml.ComputeMode, nvml.Return) { return nvml.COMPUTEMODE_DEFAULT, nvml.SUCCESS }
		d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) { return nvml.Memory_v2{Free: uint64(n) << 30}, nvml.SUCCESS }
		d.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
			return []nvml.ProcessInfo{{Pid: uint32(100 + n), UsedGpuMemory: 1 << 20}}, nvml.SUCCESS
		}
		d.GetMPSComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) { return nil, nvml.SUCCESS }
	}
	s.Device(6).GetComputeModeFunc = func() (nvml.ComputeMode, nvml.Return) { return nvml.COMPUTEMODE_EXCLUSIVE_PROCESS, nvml.SUCCESS }
	s.Device(2).MigMode = nvml.DEVICE_MIG_ENABLE

	i := openServer(t, s)
	defer i.Close()
	if free, err := i.Free(s.Device(5).UUID); err != nil || free != 5<<30 {
		t.Errorf("%d bytes are free, %v", free, err)
	}
	if used, err := i.Processes(s.Device(5).UUID); err != nil || !cmp.Equal(used, map[int]uint64{105: 1 << 20}) {
		t.Errorf("used by %v, %v", used, err)
	}
	changes := watchedBy(t, i)
	for range s.Devices {
		h := next(t, changes)
		cordoned := h.UUID == s.Device(6).UUID || h.UUID == s.Device(2).UUID
		if h.Down != "" || (h.Cordon != "") != cordoned {
			t.Errorf("%+v", h)
		}
	}
	events <- nvml.EventData{Device: s.Devices[4], EventType: nvml.EventTypeXidCriticalError, EventData: 79}
	if h := next(t, changes); h.UUID != s.Device(4).UUID || h.Xid != 79 || !strings.Contains(h.Down, "fallen off the bus") {
		t.Errorf("%+v", h)
	}
}

// watchedBy watches an inventory until the test ends.
func watchedBy(t *testing.T, i gpu.Inventory) chan gpu.Health {
	t.Helper()
	changes, over := make(chan gpu.Health), make(chan struct{})
	ctx, stop := context.WithCancel(t.Context())
	go func() {
		i.Watch(ctx, changes)
		close(over)
	}()
	t.Cleanup(func() {
		stop()
		<-over
	})
	return changes
}

func next(t *testing.T, changes chan gpu.Health) gpu.Health {
	t.Helper()
	select {
	case h := <-changes:
		return h
	case <-time.After(30 * time.Second):
		t.Fatal("nothing is told")
		panic("unreachable")
	}
}

// The bindings end the process if they call what the library lacks. The toolkit
// calls it as well, and does not look before.
func TestWhatTheToolkitAsksOfNVMLIsLookedForBefore(t *testing.T) {
	s := nvmltest.New(t, "DGX A100")
	i := openServer(t, s)
	defer i.Close()
	known := slices.Concat(needed, optional)
	asked := 0
	for prefix, of := range map[string]reflect.Value{
		"nvml": reflect.ValueOf(&s.Interface), "nvmlDevice": reflect.ValueOf(&s.Device(0).Device),
	} {
		for m := range of.NumMethod() {
			name, ok := strings.CutSuffix(of.Type().Method(m).Name, "Calls")
			if !ok || of.Method(m).Call(nil)[0].Len() == 0 || name == "Extensions" {
				continue
			}
			asked++
			if !slices.ContainsFunc(known, func(f string) bool {
				return f == prefix+name || strings.HasPrefix(f, prefix+name+"_v")
			}) {
				t.Errorf("%s%s was called and not looked for", prefix, name)
			}
		}
	}
	if asked < 10 {
		t.Errorf("only %d functions were called: this test sees nothing", asked)
	}
}
