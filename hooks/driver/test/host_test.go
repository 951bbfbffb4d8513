// SPDX-License-Identifier: Apache-2.0

package driver_test

import "testing"

// What the driver runs in the middle of a stream must not wait for a grant: the
// turn may not be able to end before it returns. Here no grant ever comes.
func TestHostFunctionNeverWaits(t *testing.T) {
	sim, err := simulated()
	if err != nil {
		t.Fatal(err)
	}
	a, machine := onMachine(t, sim)
	a.ledger.silent.Store(true) // nor an answer about memory
	p := startIn(t, a, []string{"SIMGPU_MACHINE=" + machine}, trap(t, sim, "host_function"))
	c := a.client()
	const refused = ": 800 800 800 800 800 800" // CUDA_ERROR_NOT_PERMITTED, the driver's own answer
	p.Expect("host function" + refused)
	p.Expect("callback" + refused)
	if n := c.page.Waiting().Load(); n != 0 {
		t.Errorf("waiting is %d, want 0", n)
	}
	c.is("CLOSED")
	if said := p.rest(); said != "" || p.Cmd.Wait() != nil || p.Stderr.String() != "" {
		t.Errorf("it ended with %v and said %q; stderr:\n%s", p.Cmd.ProcessState, said, p.Stderr)
	}
}
