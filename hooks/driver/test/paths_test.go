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
	program := trap(t, sim, "launch_paths")
	for _, way := range []string{
		"explicit stream", "legacy default stream", "legacy default stream by its handle",
		"per-thread default stream", "per-thread default stream by its handle",
		"Ex", "Ex on the legacy default stream", "Ex on the per-thread default stream",
		"cooperative", "cooperative on the per-thread default stream", "cooperative on a list of devices",
		"prepared block", "prepared grid", "prepared grid on a stream",
		"graph", "graph on the legacy default stream", "graph on the per-thread default stream",
		"launch by cuGetProcAddress", "graph by cuGetProcAddress", "set", "copy",
	} {
		t.Run(way, func(t *testing.T) {
			a, machine := onMachine(t, sim)
			p := startIn(t, a, []string{"SIMGPU_MACHINE=" + machine}, program, way)
			p.Expect("ready")
			c := a.client()
			p.GoOn()
			c.expect(wire.Pending)
			if n := worked(t, sim, machine); n != 0 {
				t.Errorf("%d pieces of work were submitted at the closed gate", n)
			}
			c.grant()
			p.Expect("done")
			p.Expect("over")
			if n := worked(t, sim, machine); n != 1 {
				t.Errorf("%d pieces of work were submitted in the turn, want 1", n)
			}
			c.is("IDLE")
			p.GoOn()
			p.Expect("")
		})
	}
}

func TestNothingIsSynchronisedInALaunchOrCapture(t *testing.T) {
	a := newArbiter(t)
	go turns(a)
	start(t, a, "fake.so", nil, onFake(t, "unsynchronised")).Done()
}
