// SPDX-License-Identifier: Apache-2.0

package nvml_test

import (
	"debug/elf"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

func library(t *testing.T) *elf.File {
	t.Helper()
	f, err := elf.Open(filepath.Join(built, "libvgpu-nvml.so"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// table is nvml.tsv: classes by name.
func table(t *testing.T) map[string]string {
	t.Helper()
	data, err := os.ReadFile("../nvml.tsv")
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]string{}
	for line := range strings.Lines(string(data)) {
		if name, class, ok := strings.Cut(strings.TrimSpace(line), "\t"); ok && !strings.HasPrefix(line, "#") {
			rows[name] = class
		}
	}
	if len(rows) < 400 {
		t.Fatalf("only %d names in the table", len(rows))
	}
	return rows
}

func TestLibraryExportsTheTableAndNothingElse(t *testing.T) {
	want := table(t)
	// Whatever the simulated NVML exports as a real driver does.
	data, err := os.ReadFile("../../../../integration/simgpu/nvml/names.inc")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`X\((nvml\w+)\)`).FindAllStringSubmatch(string(data), -1) {
		if want[m[1]] == "" {
			t.Errorf("%s is not in the table", m[1])
		}
	}
	syms, err := library(t).DynamicSymbols()
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range syms {
		if s.Section == elf.SHN_UNDEF {
			continue
		}
		if want[s.Name] == "" {
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

func TestLibraryNeedsTheRealOneByPathAndAnOldLibc(t *testing.T) {
	f := library(t)
	if name, err := f.DynString(elf.DT_SONAME); err != nil || !slices.Equal(name, []string{"libnvidia-ml.so.1"}) {
		t.Errorf("SONAME %v, %v", name, err)
	}
	needed, err := f.ImportedLibraries()
	if err != nil || len(needed) == 0 || !slices.Contains(needed, "/.vgpu/libnvidia-ml.so") {
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
		minor, err := strconv.Atoi(strings.Split(v, ".")[0])
		if err != nil || minor > 17 {
			t.Errorf("%s needs %s", s.Name, s.Version)
		}
	}
	// A constructor would run in every process that loads NVML, used or not: the
	// one of the C library's start files is all there is.
	if s := f.Section(".init_array"); s == nil || s.Size != 8 {
		t.Errorf(".init_array: %+v", s)
	}
}

func TestEveryNameLeadsToTheRealOneOrIsRefused(t *testing.T) {
	v := newVgpud(t)
	p := start(t, v, newMachine(t, 1), "names")
	rows := table(t)
	names := make([]string, 0, len(rows))
	for name := range rows {
		names = append(names, name)
	}
	slices.Sort(names)
	for _, name := range names {
		if _, err := io.WriteString(p.In, name+" "+rows[name]+"\n"); err != nil {
			t.Fatalf("%v; stderr:\n%s", err, p.Stderr)
		}
	}
	p.In.Close()
	if got := p.Line(); !strings.HasPrefix(got, strconv.Itoa(len(names))+" names, ") {
		t.Fatalf("%q; stderr:\n%s", got, p.Stderr)
	}
	p.Done()
	// Nobody was asked: no name without a function of ours comes to vgpud.
	if q := v.questions(); len(q) > 0 {
		t.Errorf("vgpud was asked %v", q)
	}
}
