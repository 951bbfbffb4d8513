// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"path/filepath"
	"testing"

	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// startBound starts a program of testdata/bound on two simulated GPUs, with turns that are
// granted at once.
func startBound(t *testing.T, a *arbiter, name string, args ...string) (*program, *client) {
	t.Helper()
	sim, err := bounded()
	if err != nil {
		t.Fatal(err)
	}
	kernels, err := filepath.Abs("../../../integration/kernels")
	if err != nil {
		t.Fatal(err)
	}
	a.auto.Store(true)
	machine, _ := newMachine(t, sim, "--gpus", "2")
	a.gpus = gpusOf(t, sim, machine)
	install(t, filepath.Join(sim, "lib", "libcuda.so.999.10"), filepath.Join(a.dir, "libcuda.so"))
	p := startIn(t, a, []string{"SIMGPU_MACHINE=" + machine}, append([]string{filepath.Join(built, "bound-"+name), kernels}, args...)...)
	p.Expect("ready")
	c := a.client()
	p.GoOn()
	return p, c
}

// A call that ends something of a context neither waits for work of the rest, nor takes it
// for complete. The program lets it go only when it is told to.
func inFlightAfter(t *testing.T, what string) {
	t.Helper()
	t.Parallel()
	p, c := startBound(t, newArbiter(t), "green", what)
	p.Expect("ready")
	if !c.revoke() {
		t.Fatal("work in flight counts as complete")
	}
	c.until("the library's thread looked", func() bool { return c.page.Completions().Load() > 0 || c.state() != "DRAINING" })
	c.is("DRAINING")
	p.GoOn()
	c.expect(wire.Drained)
	p.Expect("ready")
	p.GoOn()
	p.Done()
}

func TestEndOfAGreenContextLeavesWorkInFlight(t *testing.T) {
	for _, what := range []string{"others", "beside-capture", "own", "last"} {
		t.Run(what, func(t *testing.T) { inFlightAfter(t, what) })
	}
}

func TestResetOfAPrimaryContextThatAGreenOneHeld(t *testing.T) {
	inFlightAfter(t, "reset")
}

// A library has modules in contexts that are not current when it goes.
func TestVgpudIsToldOfAllGPUsWhenALibraryGoes(t *testing.T) {
	t.Parallel()
	a := newArbiter(t)
	p, _ := startBound(t, a, "library")
	p.Expect("ready")
	before := a.ledger.toldOf[1].Load()
	p.GoOn()
	p.Expect("ready")
	if a.ledger.toldOf[1].Load() == before {
		t.Error("vgpud was not told to look at the other GPU")
	}
	p.GoOn()
	p.Done()
}
