// SPDX-License-Identifier: Apache-2.0

package oci

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func masked(t *testing.T, spec string) []string {
	t.Helper()
	var s struct {
		Linux struct {
			MaskedPaths []string `json:"maskedPaths"`
		} `json:"linux"`
	}
	if err := json.Unmarshal([]byte(spec), &s); err != nil {
		t.Fatal(err)
	}
	return s.Linux.MaskedPaths
}

func TestMaskCompat(t *testing.T) {
	const theirs = `"linux": {"maskedPaths": ["/proc/kcore", "/usr/local/cuda-12.4/compat/"], "other": 1}`
	usual := masked(t, edited(t, `{}`, MaskCompat{}))
	for _, dir := range []string{"/usr/local/cuda/compat", "/usr/local/cuda-10.0/compat", "/usr/local/cuda-12.4/compat", "/usr/local/cuda-13.9/compat"} {
		if !slices.Contains(usual, dir) {
			t.Errorf("%s is not masked", dir)
		}
	}
	for _, c := range []struct {
		description, spec string
		more              []string // than the usual ones
	}{
		{"a container without any", `{"process": {"env": ["PATH=/usr/local/cuda/bin", "LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64"]}}`, nil},
		{"NVIDIA's images", `{"process": {"env": ["LD_LIBRARY_PATH=/usr/local/cuda/compat/lib:/usr/local/nvidia/lib"]}}`, nil},
		{"a version that nobody foresaw", `{"process": {"env": ["LD_LIBRARY_PATH=/lib:/usr/local/cuda-27.1/compat/lib.real/"]}}`, []string{"/usr/local/cuda-27.1/compat"}},
		{"another place", `{"process": {"env": ["LD_LIBRARY_PATH=/opt/cuda/compat;/opt/conda/cuda-compat"]}}`, []string{"/opt/cuda/compat", "/opt/conda/cuda-compat"}},
		{"what only sounds so", `{"process": {"env": ["LD_LIBRARY_PATH=/opt/app/compat:/usr/local/cudax/compat:compat:cuda/compat:/compat:/usr/local/cuda-12.4/compat2"]}}`, nil},
		{"another variable", `{"process": {"env": ["X=/usr/local/cuda-27.1/compat"]}}`, nil},
		{"what was masked before stays", `{` + theirs + `}`, nil},
	} {
		t.Run(c.description, func(t *testing.T) {
			got := edited(t, c.spec, MaskCompat{})
			before, all := masked(t, c.spec), slices.Clone(usual)
			if before != nil { // one of the usual ones is there already, as it was written
				all = slices.DeleteFunc(all, func(dir string) bool { return dir == "/usr/local/cuda-12.4/compat" })
			}
			if diff := cmp.Diff(slices.Concat(before, all, c.more), masked(t, got)); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
			if again := edited(t, got, MaskCompat{}); !cmp.Equal(tree(t, got), tree(t, again)) {
				t.Errorf("a second application changes it: %s", again)
			}
		})
	}
}
