// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// quantum is the default one.
const quantum = 20 * time.Millisecond

// BenchmarkDrain measures, for a program that keeps its queue full of short
// kernels while somebody else waits, how long its drains take, in tenths of a
// quantum, and alone, for how many thousandths of the time nothing was in flight
// because it was held for too long. VGPU_BENCH_AGAINST names another build of the
// library that is measured in turn with this one.
func BenchmarkDrain(b *testing.B) {
	libraries := map[string]string{"": filepath.Join(built, "libvgpu-cuda.so")}
	if other := os.Getenv("VGPU_BENCH_AGAINST"); other != "" {
		libraries["other-"] = other
	}
	for range b.N {
		for prefix, lib := range libraries {
			for _, us := range []string{"20", "50"} {
				p, c, _ := queueUnder(b, lib, "20000", us)
				took := drainsOf(p, c)
				b.ReportMetric(tenths(took[len(took)/2]), prefix+us+"us-median")
				b.ReportMetric(tenths(took[len(took)*99/100]), prefix+us+"us-p99")
				b.Logf("%s%s us: %d drains", prefix, us, len(took))
			}
			p, c, ops := queueUnder(b, lib, "20000", "50")
			c.grant()
			p.goOn()
			p.done()
			b.ReportMetric(1000*dry(named(ops(), "cuLaunchKernel:spin_us")), prefix+"dry")
		}
	}
}

// dry is the share of the time in which no work was in flight.
func dry(ops []operation) float64 {
	var none int64
	ended := ops[0].submit
	for _, o := range ops {
		none += max(0, o.submit-ended)
		ended = max(ended, o.ended)
	}
	return float64(none) / float64(ended-ops[0].submit)
}

func tenths(d time.Duration) float64 { return float64(d) / float64(quantum/10) }

// queueUnder starts the program with the given library, closed. The last result
// reads what the simulated GPU did.
func queueUnder(b *testing.B, lib string, args ...string) (*program, *client, func() []operation) {
	b.Helper()
	sim, err := bounded()
	if err != nil {
		b.Fatal(err)
	}
	kernels, err := filepath.Abs("../../../integration/kernels")
	if err != nil {
		b.Fatal(err)
	}
	a := newArbiter(b)
	machine, gpu := newMachine(b, sim)
	a.gpus = [][16]byte{gpu}
	install(b, filepath.Join(sim, "lib", "libcuda.so.999.10"), filepath.Join(a.dir, "libcuda.so"))
	p := startIn(b, a, []string{"SIMGPU_MACHINE=" + machine, "VGPU_JAIL_LIB=" + lib},
		append([]string{filepath.Join(built, "bound-queue"), kernels, "stream"}, args...)...)
	// Its set-up is not held back.
	a.auto.Store(true)
	p.expect("ready")
	a.auto.Store(false)
	c := a.client()
	c.revoke()
	return p, c, func() []operation { return operations(b, sim, machine) }
}

// drainsOf gives the program turns of a quantum until it ends, and returns how
// long each took to drain, in rising order.
func drainsOf(p *program, c *client) (took []time.Duration) {
	p.t.Helper()
	c.page.Wanted().Store(1)
	p.goOn()
	for {
		select {
		case line := <-p.lines:
			if line != "done" {
				p.t.Fatalf("the program said %q; stderr:\n%s", strings.TrimSpace(line), p.stderr)
			}
			slices.Sort(took)
			return took
		case <-c.msgs: // PENDING of the last turn, or IDLE
		default:
		}
		if c.page.Waiting().Load() == 0 {
			time.Sleep(100 * time.Microsecond)
			continue
		}
		c.grant()
		time.Sleep(quantum)
		if !c.revoke() {
			continue
		}
		began := time.Now()
		for c.state() == "DRAINING" {
			time.Sleep(10 * time.Microsecond)
		}
		took = append(took, time.Since(began))
	}
}
