// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"fmt"
	"maps"
	"path/filepath"
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// burstArgs is a container's share of contention: bursts with pauses between.
func burstArgs(bursts int) []string {
	return []string{"burst", "--bursts", fmt.Sprint(bursts), "--launches", "5", "--gpu-us", "10000", "--cpu-us", "0", "--rest-us", "5000"}
}

// longHog is a hog whose queue is full also where it does not get a CPU for some
// milliseconds: that of kernels of one runs empty, and the turn is over.
func longHog() []string { return []string{"hog", "--ms", "0", "--kernel-us", "20000"} }

// three starts three containers that want the GPU at the same time, and returns
// who they are in the simulated GPU's log.
func (n *node) three(bursts int) map[harness.Tenant]*harness.Container {
	n.T.Helper()
	all := map[harness.Tenant]*harness.Container{}
	for _, id := range []string{"one", "two", "three"} {
		// At once: on a slow machine it has ended before the last one starts.
		maps.Copy(all, n.Tenants(n.Launch(harness.Spec{ID: id, Args: burstArgs(bursts)})))
	}
	return all
}

// Invariants 1 and 2: three containers take turns; the simulated GPU sees no
// overlap, and each piece of work was submitted in a turn of its own vGPU.
func TestTurns(t *testing.T) {
	harnesstest.Versions(t, func(t *testing.T, v harness.Version) {
		n := start(t, harness.Options{Version: v, Daemon: harness.DaemonOptions{LogLevel: "trace"}})
		const bursts = 60
		tenants := n.three(bursts)
		ids := n.VGPUIDs(tenants)
		for _, c := range tenants {
			n.Finish(c)
		}
		o := n.NoOverlap()
		if want := int64(3 * bursts * 5); o.Submissions < want || len(o.Tenants) != 3 {
			t.Errorf("the simulated GPU has seen %d pieces of work of %d tenants, want %d of 3", o.Submissions, len(o.Tenants), want)
		}
		n.InTurns(ids)
	})
}

// The same three containers with the gate switched off: the simulated GPU sees
// them compute at the same time. It shows that TestTurns can fail, and why it
// does not. "make test" builds that library with VGPU_NO_GATE=1 into build/nogate;
// to see TestTurns itself fail with it, run
//
//	make build nogate && VGPU_TEST_LIBRARY=$PWD/build/nogate/libvgpu-cuda.so go test ./integration -run TestTurns
func TestSwitchedOffGate(t *testing.T) {
	paths, err := harness.DefaultPaths()
	if err != nil {
		t.Fatal(err)
	}
	n := start(t, harness.Options{
		Version: harness.Containerd24,
		Daemon:  harness.DaemonOptions{Library: filepath.Join(paths.Root, "build", "nogate", "libvgpu-cuda.so")},
	})
	n.three(1_000_000)
	n.Wait(func() error {
		o, err := n.Daemon.Overlap(n.Ctx)
		if err == nil && (o.OverlapNS == 0 || len(o.Tenants) != 3) {
			err = fmt.Errorf("with the gate switched off the simulated GPU should see overlap of 3 tenants: %+v", o)
		}
		return err
	})
}

// Invariant 3: while one container holds one GPU for good, another gets the
// other GPU.
func TestSecondGPU(t *testing.T) {
	n := start(t, harness.Options{
		Version: harness.Containerd24,
		Daemon:  harness.DaemonOptions{GPUs: "sim:2", Drain: longest},
	})
	// One kernel that outlives the test: its GPU is not to be had.
	n.Launch(harness.Spec{ID: "hog", Args: []string{"burst", "--launches", "1", "--gpu-us", "3600000000"}})
	n.In("hog", "HOLDING")
	n.Run(harness.Spec{ID: "other", Args: []string{"vecadd"}})
	if o := n.NoOverlap(); len(o.GPUs) != 2 || o.GPUs[0].Submissions == 0 || o.GPUs[1].Submissions == 0 {
		t.Errorf("both GPUs should have seen work: %+v", o)
	}
}

// Invariant 4: who is done loses the GPU without being revoked: a container that
// computes once and then sleeps for good does not keep another from the only GPU.
func TestReleasedOnCompletion(t *testing.T) {
	n := start(t, harness.Options{
		Version: harness.Containerd24,
		Daemon:  harness.DaemonOptions{Quantum: longestQuantum},
	})
	sleeper := n.Launch(harness.Spec{ID: "sleeper", Args: []string{"burst", "--bursts", "1", "--gpu-us", "1000", "--rest-us", "600000000"}})
	n.Wait(func() error {
		o, err := n.Daemon.Overlap(n.Ctx)
		if err == nil && (o.Submissions < 10 || o.Open > 0) {
			err = errNotYet
		}
		return err
	})
	n.Run(harness.Spec{ID: "next", Args: []string{"vecadd"}})
	if sleeper.Ended() {
		t.Errorf("the first container ended: %s", sleeper.Output())
	}
	v, err := n.VGPU("sleeper")
	if err != nil {
		t.Fatal(err)
	}
	if u := v.GetUsage(); u.GetTurns() == 0 || u.GetDrains() != 0 {
		t.Errorf("the first container's turn should have ended by completion: %v", u)
	}
	n.NoOverlap()
}

// Quantum: who never completes is revoked when another waits.
// Three containers that always have work: their parts of the GPU's time are what
// their annotations say.
func TestSharesOfHogs(t *testing.T) {
	n := start(t, harness.Options{Version: harness.Containerd24})
	want := map[string]float64{"light": 0.2, "heavy": 0.6, "capped": 0.2}
	hogs := []*harness.Container{
		n.Launch(harness.Spec{ID: "light", Args: longHog(), Annotations: map[string]string{"vgpu-shim.dev/weight": "100"}}),
		n.Launch(harness.Spec{ID: "heavy", Args: longHog(), Annotations: map[string]string{"vgpu-shim.dev/weight": "300"}}),
		n.Launch(harness.Spec{ID: "capped", Args: longHog(), Annotations: map[string]string{
			"vgpu-shim.dev/priority": "high", "vgpu-shim.dev/max-share": "20%",
		}}),
	}
	for _, h := range hogs {
		n.Says(h, "running")
	}
	held := func() map[string]time.Duration {
		t.Helper()
		now := make(map[string]time.Duration)
		for id := range want {
			v, err := n.VGPU(id)
			if err != nil {
				t.Fatal(err)
			}
			now[id] = v.GetUsage().GetHeld().AsDuration()
		}
		return now
	}
	sum := func(m map[string]time.Duration) (all time.Duration) {
		for _, d := range m {
			all += d
		}
		return all
	}
	// From when all run and the cap's first window is used up, over eight seconds
	// of the GPU's time.
	n.Wait(func() error {
		if got := sum(held()); got < 3*time.Second {
			return fmt.Errorf("the first windows are not over: %v", got)
		}
		return nil
	})
	before := held()
	n.Wait(func() error {
		if got := sum(held()) - sum(before); got < 8*time.Second {
			return fmt.Errorf("they computed for no more than %v", got)
		}
		return nil
	})
	after := held()
	all := sum(after) - sum(before)
	for id, part := range want {
		got := float64(after[id]-before[id]) / float64(all)
		if got < part-.03 || got > part+.03 {
			t.Errorf("%s had %.3f of the GPU's time, want %.3f", id, got, part)
		}
	}
	n.NoOverlap()
}

func TestHogIsRevoked(t *testing.T) {
	n := start(t, harness.Options{Version: harness.Containerd24})
	hog := n.Launch(harness.Spec{ID: "hog", Args: longHog()})
	n.Says(hog, "running")
	n.Run(harness.Spec{ID: "other", Args: []string{"vecadd"}})
	v, err := n.VGPU("hog")
	if err != nil {
		t.Fatal(err)
	}
	if v.GetUsage().GetDrains() == 0 {
		t.Errorf("the hog's turns did not end by a revoke: %v", v.GetUsage())
	}
	n.NoOverlap()
}
