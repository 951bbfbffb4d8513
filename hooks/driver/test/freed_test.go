// SPDX-License-Identifier: Apache-2.0

package driver_test

import "testing"

// Each charge is given back once: what is freed twice, or was never allocated, is
// no credit.
func TestWhatIsFreedTwiceIsGivenBackOnce(t *testing.T) {
	sim, err := simulated()
	if err != nil {
		t.Fatal(err)
	}
	program := trap(t, sim, "frees_twice")
	a, machine := onMachine(t, sim)
	want, status := bare(t, sim, machine, nil, program)
	a.auto.Store(true)
	a.ledger.set(0, 256*mib)
	p := startIn(t, a, []string{"SIMGPU_MACHINE=" + machine}, program)
	c := a.client()
	said := p.rest()
	_ = p.Cmd.Wait()
	if got := p.Cmd.ProcessState.ExitCode(); said != want || got != status || p.Stderr.String() != "" {
		t.Errorf("with our library it says\n%s(exit status %d)\nwithout it\n%s(exit status %d); stderr:\n%s", said, got, want, status, p.Stderr)
	}
	c.used(0, 0)
}
