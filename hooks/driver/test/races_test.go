// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// begin starts a program whose turns are granted at once.
func begin(t *testing.T, env []string, args ...string) (*program, *client) {
	t.Helper()
	a := newArbiter(t)
	a.auto.Store(true)
	p := start(t, a, "fake.so", env, args...)
	p.Expect("ready")
	c := a.client()
	p.GoOn()
	return p, c
}

// looked waits until the library's thread has asked the driver, and fails if it
// took what is in flight for complete.
func looked(p *program, c *client) {
	p.t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case line := <-p.Lines:
			if line != "looked" {
				_ = p.Cmd.Wait()
				p.t.Fatalf("the program said %q, want \"looked\"; stderr:\n%s", line, p.Stderr)
			}
			c.is("OPEN")
			return
		case m := <-c.msgs:
			if m.Type == wire.IdleMsg {
				p.t.Fatal("work in flight counts as complete")
			}
		case <-deadline:
			p.t.Fatalf("the library's thread asks for nothing; the word is %s", c.state())
		}
	}
}

// watched: work is in flight until the program releases it.
func watched(t *testing.T, args ...string) {
	t.Helper()
	p, c := begin(t, nil, args...)
	p.Expect("launched")
	c.want(1)
	p.GoOn()
	looked(p, c)
	p.GoOn()
	p.Expect("released")
	c.expect(wire.IdleMsg)
	p.GoOn()
	p.Done()
}

func TestHandleReusedDuringDestroyIsNotComplete(t *testing.T) {
	for _, name := range []string{"stream-reused", "context-reused"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			watched(t, "overlap", name)
		})
	}
}

func TestFailedDestroyKeepsTheStream(t *testing.T) {
	p, c := begin(t, nil, "overlap", "destroy-fails")
	p.Expect("launched")
	c.is("OPEN")
	p.GoOn()
	p.Expect("synced")
	c.is("IDLE")
	p.GoOn()
	p.Done()
}

func TestPrimaryContextsOfTwoGPUsAreMadeAtOnce(t *testing.T) {
	p, _ := begin(t, nil, "overlap", "primaries")
	p.Done()
}

func TestReleaseThatWasNotTheLastKeepsTheWork(t *testing.T) {
	p, c := begin(t, nil, "overlap", "primary-kept")
	p.Expect("launched")
	c.want(1)
	p.GoOn()
	looked(p, c)
	p.GoOn()
	p.Expect("released")
	c.expect(wire.IdleMsg)
	c.want(0)
	p.GoOn()
	p.Expect("synced")
	c.is("IDLE")
	p.GoOn()
	p.Done()
}

func TestEventRecordedTwiceAtOnceProvesNothing(t *testing.T) {
	for _, name := range []string{"event-recorded-twice", "event-recorded-late"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			watched(t, "overlap", name)
		})
	}
}

func TestThreadsOnOneStreamLoseNoCount(t *testing.T) {
	if out, err := command("counts").CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestStreamBehindManyOthersIsStillFound(t *testing.T) {
	watched(t, "overlap", "crowd")
}

func TestRefusedProbeIsNotTakenForDeath(t *testing.T) {
	for _, name := range []string{"unprobed-thread", "unprobed-stream", "unprobed-thread-system", "unprobed-stream-system"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			watched(t, "submit", name)
		})
	}
}

func TestGreenContextThatEndsIsNotComplete(t *testing.T) {
	watched(t, "submit", "green")
}

func TestStickyErrorOnAPerThreadStreamDrains(t *testing.T) {
	p, c := begin(t, nil, "submit", "sticky-per-thread")
	p.Expect("launched")
	c.revoke()
	c.expect(wire.Drained)
	p.GoOn()
	p.Expect("told")
	p.GoOn()
	p.Done()
}

func TestConstructorAtTheGateDoesNotStopTheDrain(t *testing.T) {
	p, c := begin(t, []string{"PLUGIN=" + filepath.Join(built, "plugin.so")}, "overlap", "plugin")
	p.Expect("loading")
	p.Expect("in the constructor")
	if !c.revoke() {
		t.Fatal("the turn was over before it was revoked")
	}
	c.expect(wire.Drained)
	p.GoOn()
	p.Expect("launch: 0")
	p.Expect("loaded")
	p.GoOn()
	p.Done()
}

func TestCaptureProbesLegacyStreamsOfAllContexts(t *testing.T) {
	p, c := begin(t, nil, "capture", "other-context")
	p.Expect("capturing")
	if !c.revoke() {
		t.Fatal("the turn was over before it was revoked")
	}
	c.expect(wire.Drained)
	p.GoOn()
	p.Expect("went on")
	p.GoOn()
	p.Done()
}

func TestCaptureThatProbesIsAlone(t *testing.T) {
	for _, name := range []string{"two-begin", "context-goes"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, _ := begin(t, nil, "capture", name)
			p.Done()
		})
	}
}

func TestCopyThatDoesNotWaitProvesNothing(t *testing.T) {
	p, c := begin(t, nil, "submit", "no-bytes")
	p.Expect("copied")
	c.is("OPEN")
	p.GoOn()
	p.Expect("arrived")
	c.is("IDLE")
	p.GoOn()
	p.Done()
}

func TestDetachOnlyLowersACount(t *testing.T) {
	p, c := begin(t, nil, "submit", "detach")
	p.Expect("detached")
	c.is("OPEN")
	p.GoOn()
	p.Expect("destroyed")
	c.is("IDLE")
	p.GoOn()
	p.Done()
}

func TestLaunchInAnExitHandlerDoesNotHang(t *testing.T) {
	p, c := begin(t, nil, "process", "exit-handler")
	p.Expect("launched")
	if !c.revoke() {
		t.Fatal("the turn was over before it was revoked")
	}
	p.GoOn()
	p.Expect("late: 0")
	p.Expect("")
	if err := p.Cmd.Wait(); err != nil {
		t.Fatalf("%v; stderr:\n%s", err, p.Stderr)
	}
}
