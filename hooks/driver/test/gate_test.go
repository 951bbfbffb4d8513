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
	p.expect("ready")
	c := a.client()
	p.goOn()
	return p, c
}

// end ends a program that only waits for it.
func (p *program) end() {
	p.t.Helper()
	p.goOn()
	p.done()
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
			p.silent()
			c.grant()
			p.expect("passed")
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
	p.expect("passed")
	c.page.Wanted().Store(1) // no nudge: the thread alone tells
	p.goOn()
	p.expect("cancelled")
	c.expect(wire.IdleMsg)
	p.end()
}

func TestSignalHandlerUndoesOnlyItsOwnThreadsClosing(t *testing.T) {
	for _, name := range []string{"closing-other", "closing-own"} {
		t.Run(name, func(t *testing.T) {
			a := newArbiter(t)
			a.auto.Store(true)
			p, _ := gate(t, a, name)
			p.expect("passed")
			p.end()
		})
	}
}

func TestEachThreadCountsInASlotOfItsOwn(t *testing.T) {
	for _, name := range []string{
		"slots-many", "slots-poor", "slots-reused", "slots-nested", "slots-ended-inside", "slots-destructor", "slots-fork",
	} {
		t.Run(name, func(t *testing.T) {
			a := newArbiter(t)
			a.auto.Store(true)
			p, _ := gate(t, a, name)
			p.expect("passed")
			p.end()
		})
	}
}

func TestThreadThatMayNotWaitPassesAndRingsNoBell(t *testing.T) {
	p, c := gate(t, newArbiter(t), "may-not-wait")
	p.expect("passed")
	p.goOn()
	c.expect(wire.Pending)
	c.grant()
	p.expect("passed again")
	p.end()
}

func TestThreadThatEndsInItsWaitWaitsNoMore(t *testing.T) {
	p, c := gate(t, newArbiter(t), "wait-ended")
	c.expect(wire.Pending)
	p.goOn()
	p.expect("ended")
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
		p.expect("closing")
		c.is("CLOSING")
		c.revoke()
		c.is("DRAINING")
		c.resume()
		p.goOn()
		p.expect("closed")
		c.is("OPEN")
		p.end()
	})
	t.Run("the library's thread that drains", func(t *testing.T) {
		a := newArbiter(t)
		a.auto.Store(true)
		p, c := gate(t, a, "stale-drain")
		p.expect("submitted")
		c.revoke()
		p.expect("drained")
		c.resume()
		p.goOn()
		p.expect("submitted again")
		c.want(1)
		p.goOn()
		p.expect("looked")
		c.is("OPEN")
		p.end()
	})
}

func TestGapsAreCountedByLength(t *testing.T) {
	a := newArbiter(t)
	a.auto.Store(true)
	p, c := gate(t, a, "gaps")
	p.expect("bucket 31 +3")
	p.expect("bucket 30 +1")
	p.expect("idle")
	// A gap that ends by a take is none of them.
	c.revoke()
	c.is("CLOSED")
	c.grant()
	c.is("IDLE")
	p.goOn()
	p.expect("counted")
	c.is("OPEN")
	p.end()
}
