// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"math"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

const policyWindow = 200 * time.Millisecond

// The policies by name, chosen live with one population: the worked examples of
// products that have them, a GPU of 20 slots and containers that ask for 5, 5 and
// 10 per cent. Their kernels are of different lengths.
//
// Quantum and window are short, so that what is measured at both ends of two
// seconds, a turn too much or too little, is less than 1 %. A window holds more than
// one quantum of the smallest cap: what flows in while it is full is lost.
func TestPolicies(t *testing.T) {
	t.Parallel()
	n := start(t, harness.Options{Version: harness.Containerd24, Daemon: harness.DaemonOptions{
		Quantum: 2 * time.Millisecond, Engine: fmt.Sprintf("window = %q\n", policyWindow),
	}})
	ids := []string{"one", "two", "three"}
	kernels := []string{"500", "1300", "900"}
	var hogs []*harness.Container
	for i, id := range ids {
		annotations := map[string]string{"vgpu-shim.dev/weight": "100", "vgpu-shim.dev/max-share": "5%"}
		if id == "three" {
			annotations = map[string]string{"vgpu-shim.dev/weight": "200", "vgpu-shim.dev/max-share": "10%"}
		}
		// A container whose program ended still has its vGPU.
		hogs = append(hogs, n.Launch(harness.Spec{ID: id, Annotations: annotations, Args: []string{
			"sh", "-c", "hog --ms 0 --depth 2 --kernel-us " + kernels[i] + "; sleep 100000",
		}}))
	}
	for _, h := range hogs {
		n.Says(h, "running")
	}
	for _, tc := range []struct {
		description string
		change      func()
		want        [3]float64
		fixed       int // how many of them, the first ones, have that of all time
	}{
		{"preemptive", func() { n.cli("policy", "fair") }, [3]float64{1. / 3, 1. / 3, 1. / 3}, 0},
		{"weighted preemptive", func() { n.cli("policy", "weighted") }, [3]float64{.25, .25, .5}, 0},
		{"average", func() { n.cli("policy", "average", "--slots", "20") }, [3]float64{.05, .05, .05}, 3},
		{"fixed percentage", func() { n.cli("policy", "fixed") }, [3]float64{.05, .05, .1}, 3},
		{"hybrid: one has 30 per cent, the others share the rest by weight", func() {
			n.cli("set", "one", "max-share=30%")
			n.cli("set", "two", "max-share=")
			n.cli("set", "three", "max-share=")
			n.cli("policy", "hybrid")
		}, [3]float64{.3, .7 / 3, 1.4 / 3}, 1},
		{"weighted weak, the third idle", func() {
			n.cli("policy", "weighted")
			if err := syscall.Kill(n.child(hogs[2]), syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			n.Wait(func() error {
				if v, err := n.VGPU("three"); err != nil || v.GetClients() != 0 {
					return fmt.Errorf("its process is still there: %v, %w", v, err)
				}
				return nil
			})
		}, [3]float64{.5, .5, 0}, 0},
	} {
		tc.change()
		n.share(ids, tc.want, tc.fixed)
		if t.Failed() {
			t.Fatalf("under %s", tc.description)
		}
	}
	n.NoOverlap()
}

// share waits until the containers' parts of the GPU's time, by vgpud's accounts,
// are what they should be, within 1 %, over two to six seconds: with another policy
// they never are. The first ones have parts of all time, the others of what those
// leave, without what it takes to switch.
func (n *node) share(ids []string, want [3]float64, fixed int) {
	n.T.Helper()
	look := func() (held [3]time.Duration, at time.Time) {
		n.T.Helper()
		at = time.Now()
		all, err := n.Daemon.VGPUs(n.Ctx)
		if err != nil {
			n.T.Fatal(err)
		}
		for i, id := range ids {
			for _, v := range all {
				if v.GetContainer().GetId() == id {
					held[i] = v.GetUsage().GetHeld().AsDuration()
				}
			}
		}
		return held, at
	}
	// A cap begins with what a window brings, at once.
	_, changed := look()
	var before [3]time.Duration
	var began time.Time
	n.Wait(func() error {
		if before, began = look(); began.Sub(changed) < 2*policyWindow {
			return errNotYet
		}
		return nil
	})
	n.Wait(func() error {
		after, now := look()
		long := now.Sub(began)
		if long < 2*time.Second {
			return errNotYet
		}
		var got [3]float64
		var shared time.Duration
		left := 1.
		for i := range got {
			got[i] = float64(after[i]-before[i]) / float64(long)
			if i < fixed {
				left -= want[i]
			} else {
				shared += after[i] - before[i]
			}
		}
		worst := 0.
		for i := range got {
			if i >= fixed {
				got[i] = left * float64(after[i]-before[i]) / float64(shared)
			}
			worst = max(worst, math.Abs(got[i]-want[i]))
		}
		if worst > .01 {
			if long > 6*time.Second { // what disturbed it may be over
				before, began = after, now
			}
			return fmt.Errorf("the parts of %v are %.4f, want %.4f", long, got, want)
		}
		n.T.Logf("the parts of %v are %.4f", long, got)
		return nil
	})
}

// Policy native: no turns, the hardware slices.
func TestNative(t *testing.T) {
	t.Parallel()
	n := start(t, harness.Options{Version: harness.Containerd24})
	hogs := []*harness.Container{
		n.Launch(harness.Spec{ID: "one", Args: []string{"hog", "--ms", "0"}}),
		n.Launch(harness.Spec{ID: "two", Args: []string{"hog", "--ms", "0"}}),
	}
	tenants := n.Tenants(hogs...)
	n.GoOn(tenants, nil)
	n.NoOverlap()
	n.cli("policy", "native")
	n.Wait(func() error {
		o, err := n.Daemon.Overlap(n.Ctx)
		if err == nil && o.OverlapNS == 0 {
			err = errNotYet
		}
		return err
	})
	// And back: they take turns again once each had one that began after that.
	n.cli("policy", "default")
	for range 2 {
		n.GoOn(tenants, n.Submissions())
	}
	n.alone(monotonic(t), hogs...)
}

// monotonic is now, by the clock of the simulated GPU's log.
func monotonic(t *testing.T) time.Duration {
	t.Helper()
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		t.Fatal(err)
	}
	return time.Duration(now.Nano())
}

// alone watches containers for a while. From an instant on no work of two of them
// must be in flight at once.
func (n *node) alone(from time.Duration, all ...*harness.Container) {
	n.T.Helper()
	for range 3 {
		n.GoOn(n.Tenants(all...), n.Submissions())
	}
	log, err := n.Daemon.Log(n.Ctx)
	if err != nil {
		n.T.Fatal(err)
	}
	log = slices.DeleteFunc(log, func(op harness.Operation) bool { return op.End != 0 && op.End <= from })
	for i := range log {
		log[i].Submit = max(log[i].Submit, from)
	}
	for i, c := range all {
		for _, other := range all[i+1:] {
			if got := harness.Together(log, is(n.tenant(c)), is(n.tenant(other))); got != 0 {
				n.T.Errorf("%d pieces of work of %s were in flight with some of %s", got, c.ID, other.ID)
			}
		}
	}
}
