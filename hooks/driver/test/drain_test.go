// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"testing"

	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// drains starts a program whose turn is revoked once it has launched.
func drains(t *testing.T, name string) (*program, *client) {
	t.Helper()
	p, c := begin(t, nil, "submit", name)
	p.Expect("launched")
	if !c.revoke() {
		t.Fatal("the turn was over before it was revoked")
	}
	p.GoOn()
	return p, c
}

func (c *client) progress(want uint64) {
	c.t.Helper()
	if n := c.page.Progress().Load(); n != want {
		c.t.Errorf("progress is %d, want %d", n, want)
	}
}

// A drain that waits for a thread at the gate ends once it is resumed, and only
// then.
func TestResumedDrainLetsTheWaitingThreadEndIt(t *testing.T) {
	p, c := drains(t, "depends")
	c.expect(wire.Pending)
	p.Expect("looked")
	c.is("DRAINING")
	p.Silent()
	c.progress(0)
	epoch := wire.Epoch(c.page.Word().Load())
	c.resume()
	p.Expect("passed")
	if n := c.page.Waiting().Load(); n != 0 {
		t.Errorf("waiting is %d after the launch, want 0", n)
	}
	c.want(1)
	c.expect(wire.IdleMsg)
	c.is("IDLE")
	if got := wire.Epoch(c.page.Word().Load()); got != epoch+1 {
		t.Errorf("epoch %d, want %d", got, epoch+1)
	}
	p.GoOn()
	p.Done()
}

// A resumed turn is revoked again and drains like any other.
func TestResumedTurnDrains(t *testing.T) {
	p, c := drains(t, "shrinks")
	p.Expect("looked")
	c.resume()
	if !c.revoke() {
		t.Fatal("the turn was over before it was revoked again")
	}
	for range 3 {
		p.GoOn()
		p.Expect("stepped")
	}
	c.expect(wire.Drained)
	c.is("CLOSED")
	p.GoOn()
	p.Done()
}

func TestDrainThatGetsOnShowsProgress(t *testing.T) {
	p, c := drains(t, "shrinks")
	p.Expect("looked")
	c.progress(0)
	for i := range uint64(2) {
		p.GoOn()
		p.Expect("stepped")
		c.until("progress rises", func() bool { return c.page.Progress().Load() == i+1 })
		c.is("DRAINING")
	}
	p.GoOn()
	p.Expect("stepped")
	c.expect(wire.Drained)
	p.GoOn()
	p.Done()
}

func TestDrainThatSpinsShowsNoProgress(t *testing.T) {
	p, c := drains(t, "spins")
	p.Expect("looked")
	c.progress(0)
	p.GoOn()
	p.Expect("asked")
	c.until("progress rises", func() bool { return c.page.Progress().Load() == 1 })
	p.GoOn()
	p.Expect("looked again")
	c.progress(1)
	c.is("DRAINING")
	p.GoOn()
	p.Done()
}
