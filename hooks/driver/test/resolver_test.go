// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// namesOf lists the names of a table of entry points.
func namesOf(t *testing.T, table string) (names []string) {
	t.Helper()
	data, err := os.ReadFile(table)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(data)) {
		if name, _, ok := strings.Cut(line, "\t"); ok && !strings.HasPrefix(line, "#") {
			names = append(names, name)
		}
	}
	if len(names) < 400 {
		t.Fatalf("only %d names in %s", len(names), table)
	}
	return names
}

// A runtime asks for all that it may need before it calls cuInit. The process is
// managed all the same: its launch waits.
func TestResolverIsTheFirstCall(t *testing.T) {
	sim, err := simulated()
	if err != nil {
		t.Fatal(err)
	}
	suffix := regexp.MustCompile(`(_v\d+)?(_pt[sd]?[sz])?$`)
	seen := map[string]bool{}
	args := []string{trap(t, sim, "resolver_first")}
	for _, name := range namesOf(t, "../cuda.tsv") {
		if base := suffix.ReplaceAllString(name, ""); !seen[base] {
			seen[base] = true
			args = append(args, base)
		}
	}
	if len(args) < 450 {
		t.Fatalf("only %d names are asked for", len(args)-1)
	}
	a, machine := onMachine(t, sim)
	want, status := bare(t, sim, machine, nil, args...)
	counts, rest, _ := strings.Cut(want, "\n")
	if status != 0 || rest != "launched\n" {
		t.Fatalf("without our library it ended with %d and said\n%s", status, want)
	}
	p := startIn(t, a, []string{"SIMGPU_MACHINE=" + machine}, args...)
	p.Expect(counts)
	c := a.client()
	c.expect(wire.Pending)
	p.Silent()
	c.grant()
	p.Expect("launched")
	if n := a.hellos.Load(); n != 1 {
		t.Errorf("the process said HELLO %d times, want 1", n)
	}
}

// A driver whose cuInit looks up cuInit, and calls what it finds, on the same
// thread and on one that it waits for.
func TestInitThatEntersAgainDoesNotHang(t *testing.T) {
	compile(t, "fake-reenters.so", "-DREENTERS", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1",
		"testdata/fake_driver.c", "testdata/fake_memory.c")
	a := newArbiter(t)
	start(t, a, "fake-reenters.so", nil, "process", "reentered").Done()
	if n := a.hellos.Load(); n != 1 {
		t.Errorf("the process said HELLO %d times, want 1", n)
	}
}

// Those of libraries that are called cuSomething go on in lower case. What is
// exported is what stands in the tables.
func TestNoNameOfAnotherLibraryIsTaken(t *testing.T) {
	for table, own := range map[string]string{"../cuda.tsv": `^cu[A-Z]\w+$`, "../nvml/nvml.tsv": `^nvml[A-Z]\w+$`} {
		of := regexp.MustCompile(own)
		for _, name := range namesOf(t, table) {
			if !of.MatchString(name) {
				t.Errorf("%s has %s, which does not look like a name of the driver", table, name)
			}
		}
	}
}
