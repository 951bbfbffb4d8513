// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"testing"

	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// gate starts the program that is linked with the gate alone.
func gate(t *testing.T, a *arbiter, name string) (*program, *client) {
	t.Helper()
	p := startIn(t, a, nil, built+"/moments", name)
	p.Expect("ready")
	c := a.client()
	p.GoOn()
	return p, c
}

// end ends a program that only waits for it.
func (p *program) end() {
	p.t.Helper()
	p.GoOn()
	p.Done()
}

// Raising waiting and ringing is one step for signals and cancellation.
func TestNothingComesBetweenTheCountAndTheBell(t *testing.T) {
	for _, name := range []string{"bell-signal", "bell-cancel"} {
		t.Run(name, func(t *testing.T) {
			p, c := gate(t, newArbiter(t), name)
			c.expect(wire.Pending)
			if n := c.page.Waiting().Load(); n != 1 {
				t.Errorf("waiting is %d, want 1", n)
			}
			p.Silent()
			c.grant()
			p.Expect("passed")
			if n := c.page.Waiting().Load(); n != 0 {
				t.Errorf("waiting is %d after the submission, want 0", n)
			}
			p.end()
		})
	}
}

func TestCancelledThreadStillRingsIdle(t *testing.T) {
	a := newArbiter(t)
	a.auto.Store(true)
	p, c := gate(t, a, "bell-idle")
	p.Expect("passed")
	c.page.Wanted().Store(1) // no nudge: the thread alone tells
	p.GoOn()
	p.Expect("cancelled")
	c.expect(wire.IdleMsg)
	p.end()
}

func TestSignalHandlerUndoesOnlyItsOwnThreadsClosing(t *testing.T) {
	for _, name := range []string{"closing-other", "closing-own"} {
		t.Run(name, func(t *testing.T) {
			a := newArbiter(t)
			a.auto.Store(true)
			p, _ := gate(t, a, name)
			p.Expect("passed")
			p.end()
		})
	}
}

// The GPU runs dry while the thread that was held for the bound has not woken up yet: its
// turn went to others, as if it had been done.
func TestTurnIsNotIdleWhileAThreadWaitsForTheBound(t *testing.T) {
	a := newArbiter(t)
	a.auto.Store(true)
	p, c := gate(t, a, "work-comes")
	p.Expect("passed")
	c.want(1)
	p.GoOn()
	p.Expect("comes no more")
	c.expect(wire.IdleMsg)
	p.end()
}

func TestEachThreadCountsInASlotOfItsOwn(t *testing.T) {
	for _, name := range []string{
		"slots-many", "slots-poor", "slots-reused", "slots-nested", "slots-ended-inside", "slots-destructor", "slots-fork",
	} {
		t.Run(name, func(t *testing.T) {
			a := newArbiter(t)
			a.auto.Store(true)
			p, _ := gate(t, a, name)
			p.Expect("passed")
			p.end()
		})
	}
}

func TestThreadThatMayNotWaitPassesAndRingsNoBell(t *testing.T) {
	p, c := gate(t, newArbiter(t), "may-not-wait")
	p.Expect("passed")
	p.GoOn()
	c.expect(wire.Pending)
	c.grant()
	p.Expect("passed again")
	p.end()
}

func TestThreadThatEndsInItsWaitWaitsNoMore(t *testing.T) {
	p, c := gate(t, newArbiter(t), "wait-ended")
	c.expect(wire.Pending)
	p.GoOn()
	p.Expect("ended")
	if n := c.page.Waiting().Load(); n != 0 {
		t.Errorf("waiting is %d, want 0", n)
	}
	p.end()
}

func TestResumeOvertakesWhoMeantTheTurnBefore(t *testing.T) {
	t.Run("a thread that closes", func(t *testing.T) {
		a := newArbiter(t)
		a.auto.Store(true)
		p, c := gate(t, a, "stale-closer")
		p.Expect("closing")
		c.is("CLOSING")
		c.revoke()
		c.is("DRAINING")
		c.resume()
		p.GoOn()
		p.Expect("closed")
		c.is("OPEN")
		p.end()
	})
	t.Run("the library's thread that drains", func(t *testing.T) {
		a := newArbiter(t)
		a.auto.Store(true)
		p, c := gate(t, a, "stale-drain")
		p.Expect("submitted")
		c.revoke()
		p.Expect("drained")
		c.resume()
		p.GoOn()
		p.Expect("submitted again")
		c.want(1)
		p.GoOn()
		p.Expect("looked")
		c.is("OPEN")
		p.end()
	})
}

func TestGapsAreCountedByLength(t *testing.T) {
	a := newArbiter(t)
	a.auto.Store(true)
	p, c := gate(t, a, "gaps")
	p.Expect("bucket 31 +3")
	p.Expect("one more in its bucket")
	p.Expect("idle")
	// A gap that ends by a take is none of them.
	c.revoke()
	c.is("CLOSED")
	c.grant()
	c.is("IDLE")
	p.GoOn()
	p.Expect("counted")
	c.is("OPEN")
	p.end()
}
