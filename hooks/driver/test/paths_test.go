// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// worked counts what the simulated GPU was given to do.
func worked(t *testing.T, sim, machine string) (n int) {
	t.Helper()
	for _, o := range operations(t, sim, machine) {
		if o.class == "work" {
			n++
		}
	}
	return n
}

// onFake builds a program against the fake driver.
func onFake(t *testing.T, name string) string {
	t.Helper()
	args := []string{filepath.Join("testdata", name+".c"), filepath.Join(built, "fake.so")}
	base := filepath.Base(name)
	compile(t, base, append(args, strings.Fields(os.Getenv("VGPU_TEST_CFLAGS"))...)...)
	return base
}

// Whatever the way, the GPU gets nothing before the grant: its own log is the witness.
func TestEveryWayToSubmitWaitsForTheTurn(t *testing.T) {
	sim, err := simulated()
	if err != nil {
		t.Fatal(err)
	}
	a, machine := onMachine(t, sim)
	p := startIn(t, a, []string{"SIMGPU_MACHINE=" + machine}, trap(t, sim, "launch_paths"))
	c := a.client()
	c.page.Wanted().Store(1)
	ways := 0
	for line := p.line(); line != "done"; line = p.line() {
		way, ok := strings.CutPrefix(line, "next: ")
		if !ok {
			t.Fatalf("the program said %q; stderr:\n%s", line, p.stderr)
		}
		ways++
		t.Run(way, func(t *testing.T) {
			before := worked(t, sim, machine)
			p.goOn()
			c.expect(wire.Pending)
			if n := worked(t, sim, machine); n != before {
				t.Errorf("%d pieces of work were submitted at the closed gate", n-before)
			}
			c.grant()
			p.expect("over")
			if n := worked(t, sim, machine); n != before+1 {
				t.Errorf("%d pieces of work were submitted in the turn, want 1", n-before)
			}
			c.is("IDLE")
			c.revoke()
			c.is("CLOSED")
			p.goOn()
		})
		if t.Failed() {
			return
		}
	}
	if ways < 18 {
		t.Errorf("%d ways were tried, want 18", ways)
	}
}

func TestNothingIsSynchronisedInALaunchOrCapture(t *testing.T) {
	a := newArbiter(t)
	go turns(a)
	start(t, a, "fake.so", nil, onFake(t, "unsynchronised")).done()
}
