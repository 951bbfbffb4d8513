// SPDX-License-Identifier: Apache-2.0

package opencl_test

import (
	"debug/elf"
	"path/filepath"
	"slices"
	"testing"

	"github.com/vgpu-shim/vgpu/hooks/driver/test/libc"
)

// The layer exports what a loader asks for and nothing else, loads with an old C library,
// and stays loaded: a thread of ours runs in it.
func TestLibrary(t *testing.T) {
	f, err := elf.Open(filepath.Join(built, layer))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	libc.Check(t, f, false)
	syms, err := f.DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	var exports []string
	for _, s := range syms {
		if s.Section != elf.SHN_UNDEF && elf.ST_BIND(s.Info) != elf.STB_LOCAL {
			exports = append(exports, s.Name)
		}
	}
	slices.Sort(exports)
	if !slices.Equal(exports, []string{"clGetLayerInfo", "clInitLayer"}) {
		t.Errorf("it exports %v", exports)
	}
	if flags, err := f.DynValue(elf.DT_FLAGS_1); err != nil || len(flags) != 1 || elf.DynFlag1(flags[0])&elf.DF_1_NODELETE == 0 {
		t.Errorf("the flags are %#x, %v; want NODELETE among them", flags, err)
	}
}
