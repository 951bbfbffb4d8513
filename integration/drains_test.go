// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// both asks for two GPUs, which is all that there are in these tests.
var both = map[string]string{"vgpu-shim.dev/gpus": "2"}

// A drain can depend on work that stands at the gate. Each container here is
// revoked when it has submitted half of what it needs, and the other half comes
// to the closed gate only then. No deadline saves it: it must be resumed.
func TestDrainsThatNeedTheGate(t *testing.T) {
	t.Parallel()
	n := start(t, harness.Options{
		Version: harness.Containerd24,
		// For a quantum, and more the next times, it is let in: time to get a CPU.
		Daemon: harness.DaemonOptions{GPUs: "sim:2", Drain: longest, Quantum: 200 * time.Millisecond},
	})
	events := n.follow()
	for _, by := range []string{
		"collective", // its other kernel spins until this one runs
		"lock",       // a host function in flight needs it
		"value",      // a stream waits for it
	} {
		t.Run(by, func(t *testing.T) {
			n := n.sub(t)
			tied := n.Launch(harness.Spec{ID: by, Args: []string{"tied", "--by", by}, Annotations: both})
			n.Says(tied, "half")
			waiter := n.Launch(harness.Spec{ID: "beside-" + by, Args: []string{"vecadd"}, Annotations: both})
			n.In(waiter.ID, "PENDING")
			n.In(tied.ID, "DRAINING")
			if err := syscall.Kill(tied.PID, syscall.SIGUSR1); err != nil {
				t.Fatal(err)
			}
			events.wait("RESUMED", by, 1)
			if out := n.Finish(tied); !strings.HasSuffix(out, "done\n") {
				t.Errorf("it says %q", out)
			}
			n.Finish(waiter)
			if events.count("OVERRUN", "") != 0 {
				t.Errorf("an overrun, though it had only to be resumed: %+v", events.all())
			}
		})
	}
	n.NoOverlap()
}

// One that is let in time and again and completes nothing becomes an overrun, and
// everybody finishes all the same.
func TestDrainThatIsResumedInVain(t *testing.T) {
	t.Parallel()
	n := start(t, harness.Options{
		Version: harness.Containerd24,
		Daemon:  harness.DaemonOptions{Drain: longest},
	})
	events := n.follow()
	const steps, tries = 6, 3
	tied := n.Launch(harness.Spec{ID: "tied", Args: []string{"tied", "--by", "value", "--steps", "6"}})
	n.Says(tied, "half")
	other := n.Launch(harness.Spec{ID: "other", Args: []string{"hog", "--ms", "1000"}})
	for i := 1; i <= steps; i++ {
		// Each piece comes to a gate that was closed again after the one before it.
		if i <= tries+1 {
			n.In("tied", "DRAINING")
		}
		if err := syscall.Kill(tied.PID, syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		switch {
		case i <= tries:
			events.wait("RESUMED", "tied", i)
		case i == tries+1:
			events.wait("OVERRUN", "tied", 1)
		}
		if i < steps {
			n.Wait(func() error {
				if strings.Count(tied.Output(), "half") <= i {
					return errNotYet
				}
				return nil
			})
		}
	}
	if out := n.Finish(tied); !strings.HasSuffix(out, "done\n") {
		t.Errorf("it says %q", out)
	}
	n.Finish(other)
	// The pieces after the overrun are of another turn, whose drain may be resumed as well:
	// that hangs on whether they come before its quantum is over.
	first := events.all()
	first = first[:slices.IndexFunc(first, func(e event) bool { return e.Type == "OVERRUN" })]
	got := 0
	for _, e := range first {
		if e.Type == "RESUMED" && e.Container.ID == "tied" {
			got++
		}
	}
	if got != tries {
		t.Errorf("it was resumed %d times before the overrun, want %d", got, tries)
	}
}
