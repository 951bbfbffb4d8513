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
	p.expect("ready")
	c := a.client()
	p.goOn()
	return p, c
}

// looked waits until the library's thread has asked the driver, and fails if it
// took what is in flight for complete.
func looked(p *program, c *client) {
	p.t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case line := <-p.lines:
			if line != "looked" {
				_ = p.cmd.Wait()
				p.t.Fatalf("the program said %q, want \"looked\"; stderr:\n%s", line, p.stderr)
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
	p.expect("launched")
	c.want(1)
	p.goOn()
	looked(p, c)
	p.goOn()
	p.expect("released")
	c.expect(wire.IdleMsg)
	p.goOn()
	p.done()
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
	p.expect("launched")
	c.is("OPEN")
	p.goOn()
	p.expect("synced")
	c.is("IDLE")
	p.goOn()
	p.done()
}

func TestPrimaryContextsOfTwoGPUsAreMadeAtOnce(t *testing.T) {
	p, _ := begin(t, nil, "overlap", "primaries")
	p.done()
}

func TestReleaseThatWasNotTheLastKeepsTheWork(t *testing.T) {
	p, c := begin(t, nil, "overlap", "primary-kept")
	p.expect("launched")
	c.want(1)
	p.goOn()
	looked(p, c)
	p.goOn()
	p.expect("released")
	c.expect(wire.IdleMsg)
	c.want(0)
	p.goOn()
	p.expect("synced")
	c.is("IDLE")
	p.goOn()
	p.done()
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
	p.expect("launched")
	c.revoke()
	c.expect(wire.Drained)
	p.goOn()
	p.expect("told")
	p.goOn()
	p.done()
}

func TestConstructorAtTheGateDoesNotStopTheDrain(t *testing.T) {
	p, c := begin(t, []string{"PLUGIN=" + filepath.Join(built, "plugin.so")}, "overlap", "plugin")
	p.expect("loading")
	p.expect("in the constructor")
	if !c.revoke() {
		t.Fatal("the turn was over before it was revoked")
	}
	c.expect(wire.Drained)
	p.goOn()
	p.expect("launch: 0")
	p.expect("loaded")
	p.goOn()
	p.done()
}

func TestCaptureProbesLegacyStreamsOfAllContexts(t *testing.T) {
	p, c := begin(t, nil, "capture", "other-context")
	p.expect("capturing")
	if !c.revoke() {
		t.Fatal("the turn was over before it was revoked")
	}
	c.expect(wire.Drained)
	p.goOn()
	p.expect("went on")
	p.goOn()
	p.done()
}

func TestCaptureThatProbesIsAlone(t *testing.T) {
	for _, name := range []string{"two-begin", "context-goes"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, _ := begin(t, nil, "capture", name)
			p.done()
		})
	}
}

func TestCopyThatDoesNotWaitProvesNothing(t *testing.T) {
	p, c := begin(t, nil, "submit", "no-bytes")
	p.expect("copied")
	c.is("OPEN")
	p.goOn()
	p.expect("arrived")
	c.is("IDLE")
	p.goOn()
	p.done()
}

func TestDetachOnlyLowersACount(t *testing.T) {
	p, c := begin(t, nil, "submit", "detach")
	p.expect("detached")
	c.is("OPEN")
	p.goOn()
	p.expect("destroyed")
	c.is("IDLE")
	p.goOn()
	p.done()
}

func TestLaunchInAnExitHandlerDoesNotHang(t *testing.T) {
	p, c := begin(t, nil, "process", "exit-handler")
	p.expect("launched")
	if !c.revoke() {
		t.Fatal("the turn was over before it was revoked")
	}
	p.goOn()
	p.expect("late: 0")
	p.expect("")
	if err := p.cmd.Wait(); err != nil {
		t.Fatalf("%v; stderr:\n%s", err, p.stderr)
	}
}
