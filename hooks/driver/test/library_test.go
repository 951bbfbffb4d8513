// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"debug/elf"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/hooks/driver/test/libc"
)

func openLibrary(t *testing.T, name string) *elf.File {
	t.Helper()
	f, err := elf.Open(filepath.Join(built, name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func TestLibraryExportsTheTableAndNothingElse(t *testing.T) {
	data, err := os.ReadFile("../cuda.tsv")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		if name, _, ok := strings.Cut(line, "\t"); ok && !strings.HasPrefix(line, "#") {
			want[name] = true
		}
	}
	if len(want) < 700 {
		t.Fatalf("only %d names in the table", len(want))
	}
	syms, err := openLibrary(t, "libvgpu-cuda.so").DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range syms {
		if s.Section == elf.SHN_UNDEF || elf.ST_BIND(s.Info) == elf.STB_LOCAL {
			continue
		}
		if !want[s.Name] {
			t.Errorf("%s leaks", s.Name)
		}
		if s.Version != "" {
			t.Errorf("%s has the version %s", s.Name, s.Version)
		}
		delete(want, s.Name)
	}
	for name := range want {
		t.Errorf("%s is not exported", name)
	}
}

func TestLibraryNeedsTheRealDriverByPath(t *testing.T) {
	f := openLibrary(t, "libvgpu-cuda.so")
	if name, err := f.DynString(elf.DT_SONAME); err != nil || !slices.Equal(name, []string{"libcuda.so.1"}) {
		t.Errorf("SONAME %v, %v", name, err)
	}
	needed, err := f.ImportedLibraries()
	if err != nil || len(needed) == 0 || needed[0] != tools.real() {
		t.Errorf("needed: %v, %v; want %s first", needed, err, tools.real())
	}
}

// A thread of ours runs in it.
func TestLibraryIsNeverUnloaded(t *testing.T) {
	flags, err := openLibrary(t, "libvgpu-cuda.so").DynValue(elf.DT_FLAGS_1)
	if err != nil || len(flags) != 1 || elf.DynFlag1(flags[0])&elf.DF_1_NODELETE == 0 {
		t.Errorf("the flags are %#x, %v; want NODELETE among them", flags, err)
	}
}

// Of every library that a container gets, whoever adds to it.
func TestLibrariesLoadWithAnOldLibc(t *testing.T) {
	files, err := filepath.Glob(filepath.Join(built, "libvgpu-*.so"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no library in %s: %v", built, err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			libc.Check(t, openLibrary(t, filepath.Base(file)), tools.musl)
		})
	}
}
