// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vgpu-shim/vgpu/vgpu/gpu/nvmltest"
	"github.com/vgpu-shim/vgpu/vgpu/node"
	"github.com/vgpu-shim/vgpu/vgpu/node/nodetest"
)

// written is what the test reads of a config.json.
type written struct {
	Process struct{ Env []string }
	Mounts  []struct{ Destination, Source string }
	Linux   struct {
		Devices []struct {
			Path, Type   string
			Major, Minor int64
		}
		Resources struct {
			Devices []struct {
				Allow        bool
				Type, Access string
				Major, Minor *int64
			}
		}
	}
	Hooks map[string]any
}

// From NVML and an installed driver to the config.json that runc reads, for each of
// NVIDIA's servers, with nothing in between that is not the product's: a container
// gets the nodes of its GPU with their cgroup rules, our library under each name of
// the driver's, the real one at the private path, and nothing of another GPU.
func TestServersReachAContainer(t *testing.T) {
	for _, name := range nvmltest.Names() {
		t.Run(name, func(t *testing.T) {
			s := nvmltest.New(t, name)
			bound := s.Device(5)
			f := newFixture(t, `{"process": {"env": ["NVIDIA_VISIBLE_DEVICES=all"]}, "linux": {"resources": {"devices": [{"allow": false, "access": "rwm"}]}},
				"annotations": {"vgpu-shim.dev/uuid": "`+bound.UUID+`"}}`)
			f.stop()
			state := filepath.Join(filepath.Dir(f.address), "s")
			f.config.Address = filepath.Join(state, "vgpud.sock")
			cuda, nvml := builtLibrary(t, "libvgpu-cuda.so"), builtLibrary(t, "libvgpu-nvml.so")
			nodetest.Serve(t, s, state, node.LibraryConfig{CUDA: cuda, NVML: nvml})
			if err := f.create(); err != nil {
				t.Fatal(err)
			}
			var w written
			if err := json.Unmarshal([]byte(f.inner.spec), &w); err != nil {
				t.Fatal(err)
			}

			var got []string
			for _, d := range w.Linux.Devices {
				got = append(got, fmt.Sprintf("%s %s %d:%d", d.Path, d.Type, d.Major, d.Minor))
			}
			var rules []string
			for _, r := range w.Linux.Resources.Devices[1:] {
				rules = append(rules, fmt.Sprintf("%v %s %d:%d %s", r.Allow, r.Type, *r.Major, *r.Minor, r.Access))
			}
			slices.Sort(got)
			slices.Sort(rules)
			own := fmt.Sprint(bound.Minor)
			if diff := cmp.Diff([]string{
				"/dev/nvidia-modeset c 195:254", "/dev/nvidia-uvm c 511:0", "/dev/nvidia-uvm-tools c 511:1",
				"/dev/nvidia" + own + " c 195:" + own, "/dev/nvidiactl c 195:255",
			}, got); diff != "" {
				t.Errorf("device nodes (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff([]string{
				"true c 195:" + own + " rwm", "true c 195:254 rwm", "true c 195:255 rwm", "true c 511:0 rwm", "true c 511:1 rwm",
			}, rules); diff != "" {
				t.Errorf("cgroup rules (-want +got):\n%s", diff)
			}

			mounts := map[string]string{}
			for _, m := range w.Mounts {
				mounts[m.Destination] = m.Source
			}
			v, libs := s.DriverVersion, s.Root+nvmltest.LibraryDir
			want := map[string]string{
				"/.vgpu/libcuda.so": libs + "/libcuda.so." + v, "/.vgpu/libnvidia-ml.so": libs + "/libnvidia-ml.so." + v,
				"/usr/bin/nvidia-smi":                          s.Root + "/usr/bin/nvidia-smi",
				"/lib/firmware/nvidia/" + v + "/gsp_ga10x.bin": s.Root + "/lib/firmware/nvidia/" + v + "/gsp_ga10x.bin",
			}
			for _, dir := range []string{"/usr/lib/x86_64-linux-gnu/", "/usr/lib64/"} {
				for _, suffix := range []string{"", ".1", "." + v} {
					want[dir+"libcuda.so"+suffix], want[dir+"libnvidia-ml.so"+suffix] = cuda, nvml
				}
				for soname, library := range map[string]string{
					"libnvidia-ptxjitcompiler.so.1": "libnvidia-ptxjitcompiler.so.", "libnvidia-nvvm.so.4": "libnvidia-nvvm.so.",
					"libnvidia-opencl.so.1": "libnvidia-opencl.so.", "libnvcuvid.so": "libnvcuvid.so.", "libnvidia-encode.so.1": "libnvidia-encode.so.",
				} {
					want[dir+soname], want[dir+library+v] = libs+"/"+library+v, libs+"/"+library+v
				}
			}
			for destination, source := range want {
				if mounts[destination] != source {
					t.Errorf("%s is %q, want %q", destination, mounts[destination], source)
				}
			}
			for destination, source := range mounts {
				switch {
				case strings.Contains(filepath.Base(source), "libcuda.so"), strings.Contains(filepath.Base(source), "libnvidia-ml.so"):
					if filepath.Dir(destination) != "/.vgpu" {
						t.Errorf("the driver's own library %s is at %s, past ours", source, destination)
					}
				case strings.HasSuffix(source, "socket"), strings.Contains(source, "nvidia-mps"):
					t.Errorf("a daemon of the host can be reached at %s", destination)
				}
			}
			if !slices.Contains(w.Process.Env, "NVIDIA_VISIBLE_DEVICES=void") || len(w.Hooks) != 0 {
				t.Errorf("env %v, hooks %v", w.Process.Env, w.Hooks)
			}
		})
	}
}

// builtLibrary is one of ours (make build).
func builtLibrary(t *testing.T, name string) string {
	t.Helper()
	library, err := filepath.Abs(filepath.Join("../build/lib", name))
	if err == nil {
		_, err = os.Stat(library)
	}
	if err != nil {
		t.Fatalf("the take-over library is not built, run make build: %v", err)
	}
	return library
}
