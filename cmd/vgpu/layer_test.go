// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/vgpu/gpu"
)

// What OpenCL's loaders do not say of a layer that they can not load, the doctor says.
func TestALayerThatCanNotBeLoaded(t *testing.T) {
	needed := filepath.Join(t.TempDir(), "libnowhere.so")
	for name, c := range map[string]struct {
		source  string
		flags   []string
		failure string
	}{
		"well":              {"int clInitLayer(void) { return 0; }", nil, ""},
		"a missing library": {"int clInitLayer(void) { return 0; }", []string{"-Wl,--no-as-needed", needed}, "libnowhere.so => not found"},
		"a missing symbol":  {"int nowhere(void); int clInitLayer(void) { return nowhere(); }", nil, "undefined symbol: nowhere"},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			layer := filepath.Join(root, gpu.OpenCL)
			if err := os.Mkdir(filepath.Dir(layer), 0o755); err != nil {
				t.Fatal(err)
			}
			if tried, _ := load(t.Context(), root); tried {
				t.Error("a layer is tried that is not there")
			}
			for _, args := range [][]string{
				{"-shared", "-nostdlib", "-Wl,-soname,libnowhere.so", "-o", needed, "-x", "c", "/dev/null"},
				append(append([]string{"-shared", "-fPIC", "-o", layer, "-x", "c", "-"}, "-x", "none"), c.flags...),
			} {
				cc := exec.Command("cc", args...)
				cc.Stdin = strings.NewReader(c.source)
				if out, err := cc.CombinedOutput(); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
			}
			if err := copyLibc(root); err != nil {
				t.Fatal(err)
			}
			tried, failure := load(t.Context(), root)
			if !tried || !strings.Contains(failure, c.failure) || (failure == "") != (c.failure == "") {
				t.Errorf("tried is %v: %q", tried, failure)
			}
			found := checkLayer(sight{Layer: tried, LayerError: failure})
			if want := map[bool]string{true: checkOK, false: checkFault}[c.failure == ""]; len(found) != 1 || found[0].Result != want {
				t.Errorf("%+v", found)
			}
		})
	}
}
