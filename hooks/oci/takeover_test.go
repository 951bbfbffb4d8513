// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestIsCUDAName(t *testing.T) {
	for name, want := range map[string]bool{
		"libcuda.so":            true,
		"libcuda.so.1":          true,
		"libcuda.so.550.54.15":  true,
		"libcuda.so.":           false,
		"libcuda.so..1":         false,
		"libcuda.so.1.":         false,
		"libcuda.so.1a":         false,
		"libcuda.so.x":          false,
		"libcuda.so1":           false,
		"libcudart.so.13":       false,
		"libcudadebugger.so.1":  false,
		"xlibcuda.so.1":         false,
		"libcuda":               false,
		"libnvidia-ml.so.1":     false,
		"libcuda.so.1.original": false,
	} {
		if got := IsCUDAName(name); got != want {
			t.Errorf("IsCUDAName(%q) is %v", name, got)
		}
	}
}

func TestIsNVMLName(t *testing.T) {
	for name, want := range map[string]bool{
		"libnvidia-ml.so": true, "libnvidia-ml.so.1": true, "libnvidia-ml.so.550.54.15": true,
		"libnvidia-ml.so.x": false, "libnvidia-ml": false, "libcuda.so.1": false,
	} {
		if got := IsNVMLName(name); got != want {
			t.Errorf("IsNVMLName(%q) is %v", name, got)
		}
	}
}

func TestTakeoverRedirectsForeignMounts(t *testing.T) {
	const ours = `{"destination": %q, "type": "bind", "source": "/ours.so", "options": ["bind", "ro", "nosuid", "nodev"]}`
	const nvml = `{"destination": %q, "type": "bind", "source": "/nvml.so", "options": ["bind", "ro", "nosuid", "nodev"]}`
	const kept = `{"destination": %q, "type": "bind", "source": "/theirs", "options": ["rbind"], "newField": 1}`
	for _, c := range []struct{ description, destination, want string }{
		{"the versioned name at another place", "/opt/driver/libcuda.so.550.54.15", ours},
		{"the plain name", "/opt/driver/libcuda.so", ours},
		{"NVML", "/opt/driver/libnvidia-ml.so.1", nvml},
		{"the real NVML in our own directory", "/.vgpu/libnvidia-ml.so", kept},
		{"the real library in our own directory", "/.vgpu/libcuda.so", kept},
		{"the real library for musl", "/.vgpu-musl/libcuda.so", kept},
		{"ours for musl", "/.vgpu-musl/lib/libcuda.so.1", kept},
		{"a directory whose name only begins so", "/.vgpu-musl2/libcuda.so.1", ours},
		{"another library of the driver", "/usr/lib64/libnvidia-ptxjitcompiler.so.550", kept},
		{"a directory", "/usr/local/nvidia/lib64", kept},
	} {
		t.Run(c.description, func(t *testing.T) {
			spec := fmt.Sprintf(`{"mounts": [`+kept+`]}`, c.destination)
			want := fmt.Sprintf(`{"mounts": [`+c.want+`]}`, c.destination)
			take := Takeover{CUDA: "/ours.so", NVML: "/nvml.so", Keep: []string{"/.vgpu", "/.vgpu-musl"}}
			if diff := cmp.Diff(tree(t, want), tree(t, edited(t, spec, take, take))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTakeoverOfHooks(t *testing.T) {
	const keep, drop = "as it was", "dropped"
	for _, c := range []struct{ description, stage, hook, want string }{
		{
			"the legacy hook", "prestart",
			`{"path": "/usr/bin/nvidia-container-runtime-hook", "args": ["nvidia-container-runtime-hook", "prestart"]}`, drop,
		},
		{
			"the legacy hook under its old name", "createRuntime",
			`{"path": "/usr/bin/nvidia-container-toolkit", "args": ["nvidia-container-toolkit", "prestart"]}`, drop,
		},
		{
			"the compatibility hook", "createContainer",
			`{"path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "enable-cuda-compat", "--host-driver-version=550.54"]}`, drop,
		},
		{
			"the same by its other program", "createContainer",
			`{"path": "/usr/bin/nvidia-ctk", "args": ["nvidia-ctk", "hook", "enable-cuda-compat"]}`, drop,
		},
		{
			"the loader's cache", "createContainer",
			`{"path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "update-ldcache", "--folder", "/usr/lib64"]}`, keep,
		},
		{
			"links of other libraries", "createContainer",
			`{"path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "create-symlinks", "--link", "libGLX_nvidia.so.550::/usr/lib64/libGLX_indirect.so.0"], "timeout": 3}`, keep,
		},
		{
			"a link to libcuda among others", "createContainer",
			`{"path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "create-symlinks", "--link", "a::/b", "--link", "libcuda.so.1::/usr/lib64/libcuda.so", "--link=libcuda.so.1::/x/libcuda.so", "--link", "c::/d"], "timeout": 3, "newField": 1}`,
			`{"path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "create-symlinks", "--link", "a::/b", "--link", "c::/d"], "timeout": 3, "newField": 1}`,
		},
		{
			"a link over a mount", "createContainer",
			`{"path": "/usr/bin/nvidia-ctk", "args": ["nvidia-ctk", "--debug", "hook", "create-symlinks", "--link", "x::/usr/lib64/libnvidia-ml.so.1"]}`,
			`{"path": "/usr/bin/nvidia-ctk", "args": ["nvidia-ctk", "--debug", "hook", "create-symlinks"]}`,
		},
		{
			"a link where something is mounted later", "createContainer",
			`{"path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "create-symlinks", "--link", "x::/usr/lib64/libnvcuvid.so"]}`,
			`{"path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "create-symlinks"]}`,
		},
		{
			"a flag without its value", "createContainer",
			`{"path": "/usr/bin/nvidia-cdi-hook", "args": ["nvidia-cdi-hook", "create-symlinks", "--link"]}`, keep,
		},
		{
			"somebody else's hook", "startContainer",
			`{"path": "/usr/bin/hook", "args": ["nvidia-cdi-hook", "enable-cuda-compat"]}`, keep,
		},
		{"a hook without arguments", "poststop", `{"path": "/usr/bin/nvidia-cdi-hook"}`, keep},
	} {
		t.Run(c.description, func(t *testing.T) {
			const mounts = `[{"destination": "/usr/lib64/libnvidia-ml.so.1", "type": "bind", "source": "/nvml.so"}]`
			spec := func(hooks string) string {
				return fmt.Sprintf(`{"hooks": {%q: [%s], "newStage": {}}, "mounts": %s}`, c.stage, hooks, mounts)
			}
			want := c.want
			switch want {
			case keep:
				want = c.hook
			case drop:
				want = ""
			}
			take := Takeover{
				CUDA: "/ours.so", NVML: "/nvml.so", Keep: []string{"/.vgpu", "/.vgpu-musl"},
				Later: Later{{Destination: "/usr/lib64/libnvcuvid.so"}},
			}
			if diff := cmp.Diff(tree(t, spec(want)), tree(t, edited(t, spec(c.hook), take, take))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestTakeoverOfCUDAAloneLeavesNVML(t *testing.T) {
	spec := `{"mounts": [{"destination": "/opt/libnvidia-ml.so.1", "type": "bind", "source": "/theirs"}]}`
	if diff := cmp.Diff(tree(t, spec), tree(t, edited(t, spec, Takeover{CUDA: "/ours.so"}))); diff != "" {
		t.Error(diff)
	}
}

func TestTakeoverWantsALibrary(t *testing.T) {
	s, err := Parse([]byte(`{}`))
	if err != nil {
		t.Fatal(err)
	}
	for _, take := range []Takeover{{CUDA: "libcuda.so"}, {CUDA: "/ours.so", NVML: "nvml.so"}, {NVML: "/nvml.so"}} {
		if err := s.Apply(take); err == nil || !strings.Contains(err.Error(), "library") {
			t.Errorf("%+v: error is %v", take, err)
		}
	}
}
