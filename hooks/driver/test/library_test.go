// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"debug/elf"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func library(t *testing.T) *elf.File {
	t.Helper()
	f, err := elf.Open(filepath.Join(built, "libvgpu-cuda.so"))
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
	syms, err := library(t).DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range syms {
		if s.Section == elf.SHN_UNDEF {
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

func TestLibraryNeedsTheRealDriverByPathAndAnOldLibc(t *testing.T) {
	if os.Getenv("VGPU_TEST_CFLAGS") != "" {
		t.Skip("a sanitizer needs more")
	}
	f := library(t)
	if name, err := f.DynString(elf.DT_SONAME); err != nil || !slices.Equal(name, []string{"libcuda.so.1"}) {
		t.Errorf("SONAME %v, %v", name, err)
	}
	needed, err := f.ImportedLibraries()
	if err != nil || !slices.Equal(needed, []string{"/.vgpu/libcuda.so", "libpthread.so.0", "libdl.so.2", "libc.so.6"}) {
		t.Errorf("needed: %v, %v", needed, err)
	}
	syms, err := f.ImportedSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range syms {
		v, ok := strings.CutPrefix(s.Version, "GLIBC_2.")
		if !ok {
			continue
		}
		minor, _, _ := strings.Cut(v, ".")
		if n, err := strconv.Atoi(minor); err != nil || n > 17 {
			t.Errorf("%s needs %s; see glibc.h", s.Name, s.Version)
		}
	}
}
