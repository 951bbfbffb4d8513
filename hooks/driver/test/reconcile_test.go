// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"fmt"
	"path/filepath"
	"strconv"
	"testing"
)

// What we say is in use and what the driver says is the same, whatever was
// allocated and freed in whatever order, also where the driver refused some of it.
func TestLedgerAndDriverReconcile(t *testing.T) {
	sim, err := simulated()
	if err != nil {
		t.Fatal(err)
	}
	const limit = 96
	for seed := range 8 {
		for _, threads := range []int{1, 3} {
			for _, oom := range []int{0, 7 + 11*seed} { // the driver's own, not ours
				t.Run(fmt.Sprintf("%d of %d threads, oom %d", seed, threads, oom), func(t *testing.T) {
					t.Parallel()
					a := limited(t, limit*mib)
					a.ledger.chunk = 8 * mib
					machine, gpu := newMachine(t, sim)
					a.gpus = [][16]byte{gpu}
					install(t, filepath.Join(sim, "lib", "libcuda.so.999.10"), filepath.Join(a.dir, "libcuda.so"))
					knows := limit
					if oom > 0 {
						knows = 0
					}
					p := startIn(t, a, []string{"SIMGPU_MACHINE=" + machine}, filepath.Join(built, "reconcile"),
						strconv.Itoa(seed), strconv.Itoa(threads), strconv.Itoa(knows))
					c := a.client()
					p.Expect("ready")
					if oom > 0 {
						if out, err := command("simgpu/bin/simgpu", "inject", machine, "--gpu", "0", "--oom-at", strconv.Itoa(oom)).CombinedOutput(); err != nil {
							t.Fatalf("%v\n%s", err, out)
						}
					}
					p.GoOn()
					p.reconciles(c)
					p.reconciles(c)
					p.Done()
				})
			}
		}
	}
}

// reconciles compares the ledger with what the driver says.
func (p *program) reconciles(c *client) {
	p.t.Helper()
	var driver, rounded uint64
	if _, err := fmt.Sscan(p.Line(), &driver, &rounded); err != nil {
		p.t.Fatalf("%v; stderr:\n%s", err, p.Stderr)
	}
	if ours := c.uses(0); ours > driver || ours+rounded < driver {
		p.t.Errorf("the ledger says %d, the driver %d, of which at most %d is rounded up", ours, driver, rounded)
	}
	p.GoOn()
}
