// SPDX-License-Identifier: Apache-2.0

// Package libc checks what the libraries that containers get need of an image's C
// library.
package libc

import (
	"debug/elf"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Check fails a test unless a library needs nothing but files by their path and parts of
// the C library, and of glibc nothing that 2.17 lacks. musl has no versions.
func Check(t testing.TB, f *elf.File, musl bool) {
	t.Helper()
	needed, err := f.ImportedLibraries()
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range needed {
		if !partOf(name, musl) && !filepath.IsAbs(name) {
			t.Errorf("it needs %s, which an image may lack", name)
		}
	}
	if musl {
		return
	}
	// What the file as a whole needs, and what each symbol of it does: a new relocation
	// format shows only in the first.
	versions, err := f.DynamicVersionNeeds()
	if err != nil {
		t.Fatal(err)
	}
	if len(versions) == 0 {
		t.Error("it needs no version of glibc at all")
	}
	for _, v := range versions {
		for _, dep := range v.Needs {
			if !old(dep.Dep) {
				t.Errorf("it needs %s of %s: %v; see glibc.h", dep.Dep, v.Name, whoNeeds(t, f, dep.Dep))
			}
		}
	}
}

func partOf(name string, musl bool) bool {
	switch name {
	case "libc.so.6", "libpthread.so.0", "libdl.so.2", "ld-linux-aarch64.so.1", "ld-linux-x86-64.so.2":
		return !musl
	case "libc.so":
		return musl
	}
	return false
}

// old says whether glibc 2.17 has a version.
func old(version string) bool {
	v, ok := strings.CutPrefix(version, "GLIBC_2.")
	minor, _, _ := strings.Cut(v, ".")
	n, err := strconv.Atoi(minor)
	return ok && err == nil && n <= 17
}

// whoNeeds names the symbols that need a version.
func whoNeeds(t testing.TB, f *elf.File, version string) (names []string) {
	t.Helper()
	syms, err := f.ImportedSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range syms {
		if s.Version == version {
			names = append(names, s.Name)
		}
	}
	return names
}
