// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/vgpu-shim/vgpu/vgpu/wire"
	"golang.org/x/sys/unix"
)

const awayLine = "vgpu: vgpud has been away for"

func (c *client) epoch() uint64 { return wire.Epoch(c.page.Word().Load()) }

func (c *client) waiting(want uint32) {
	c.t.Helper()
	if n := c.page.Waiting().Load(); n != want {
		c.t.Errorf("waiting is %d, want %d", n, want)
	}
}

// opening is a node whose policy is to open the gate soon.
func opening(t *testing.T) *arbiter {
	t.Helper()
	a := newArbiter(t)
	a.absence.Store(1)
	return a
}

func TestGateOpensWhenVgpudStaysAwayAndClosesWhenItIsBack(t *testing.T) {
	a := opening(t)
	p, c := gate(t, a, "absent")
	c.expect(wire.Pending)
	c.is("CLOSED")
	a.away()
	p.Expect("passed")
	c.is("OPEN")
	p.GoOn()
	p.Expect("passed again")
	p.GoOn()
	p.Expect("complete")

	a.back()
	c = a.client()
	c.is("CLOSED")
	p.GoOn()
	c.expect(wire.Pending)
	c.is("CLOSED")
	c.waiting(1)
	c.grant()
	p.GoOn()
	p.Expect("passed at last")
	p.end()
	if n := strings.Count(p.Stderr.String(), awayLine); n != 1 {
		t.Errorf("it was said %d times that vgpud is away:\n%s", n, p.Stderr)
	}
}

// What does not end in time is a drain for vgpud, which can resume it.
func TestWorkOfAnAbsenceIsADrainForVgpud(t *testing.T) {
	t.Parallel()
	for _, resumed := range []bool{false, true} {
		name := "drained"
		if resumed {
			name = "resumed"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a := opening(t)
			p, c := gate(t, a, "absent-busy")
			c.expect(wire.Pending)
			a.away()
			p.Expect("passed")
			a.back()
			c.until("the gate is closed again", func() bool { return c.state() == "DRAINING" })
			p.GoOn()
			c.until("a thread waits", func() bool { return c.page.Waiting().Load() == 1 })
			c = a.client()
			c.is("DRAINING")
			c.waiting(1)
			p.Silent()
			if resumed {
				c.resume()
				c.until("the thread has passed", func() bool { return c.page.Waiting().Load() == 0 })
				p.GoOn()
			} else {
				p.GoOn()
				c.expect(wire.Drained)
				c.is("CLOSED")
				c.waiting(1)
				p.Silent()
				c.grant()
			}
			p.Expect("passed again")
			p.end()
		})
	}
}

func TestGateStaysClosed(t *testing.T) {
	t.Parallel()
	waits := func(t *testing.T, a *arbiter, away func()) {
		t.Helper()
		p, c := gate(t, a, "absent-waits")
		c.expect(wire.Pending)
		away()
		p.GoOn()
		p.Expect("tried")
		c.is("CLOSED")
		p.GoOn()
		a.back()
		c = a.client()
		c.is("CLOSED")
		c.waiting(1)
		p.Silent()
		c.grant()
		p.Expect("passed")
		p.end()
		if strings.Contains(p.Stderr.String(), awayLine) {
			t.Errorf("stderr says\n%s", p.Stderr)
		}
	}
	t.Run("if the policy is to wait", func(t *testing.T) {
		a := newArbiter(t)
		waits(t, a, a.away)
	})
	t.Run("if the vGPU was removed", func(t *testing.T) {
		a := opening(t)
		waits(t, a, func() {
			// First the name: nobody may find that it is not listened to.
			if err := os.Remove(filepath.Join(a.dir, wire.Socket)); err != nil {
				t.Error(err)
			}
			a.away()
		})
	})
	t.Run("if vgpud is there and silent", func(t *testing.T) {
		t.Parallel()
		a := opening(t)
		p, c := gate(t, a, "absent")
		c.expect(wire.Pending)
		a.deaf.Store(true)
		a.hangUp()
		for range 2 {
			c = a.client()
			c.is("CLOSED")
			p.Silent()
		}
		c.send(wire.Msg{Type: wire.Welcome})
		c.grant()
		p.Expect("passed")
	})
}

// A turn goes on without vgpud as it was, and is handed over as it is.
func TestHolderKeepsItsTurn(t *testing.T) {
	a := opening(t)
	a.auto.Store(true)
	p, c := gate(t, a, "absent-holder")
	p.Expect("inside")
	epoch := c.epoch()
	c.waiting(1)
	a.away()
	p.GoOn()
	p.Expect("tried")
	p.GoOn()
	p.Expect("passed")
	a.back()
	c = a.client()
	c.is("OPEN")
	if got := c.epoch(); got != epoch {
		t.Errorf("the word has epoch %d, want %d", got, epoch)
	}
	p.GoOn()
	p.Expect("idle")
	p.end()
	if strings.Contains(p.Stderr.String(), awayLine) {
		t.Errorf("stderr says\n%s", p.Stderr)
	}
}

func TestDrainGoesOnWithoutVgpud(t *testing.T) {
	t.Run("and ends", func(t *testing.T) {
		a := opening(t)
		a.auto.Store(true)
		p, c := gate(t, a, "absent-drained")
		p.Expect("passed")
		c.revoke()
		a.away()
		p.GoOn()
		p.Expect("tried")
		c.is("DRAINING") // nobody waits
		p.GoOn()
		p.Expect("complete")
		c.until("the turn is drained", func() bool { return c.state() == "CLOSED" })
		a.back()
		a.client().is("CLOSED")
		p.end()
	})
	t.Run("and is resumed for a thread that waits", func(t *testing.T) {
		a := opening(t)
		p, c := gate(t, a, "absent-draining")
		c.expect(wire.Pending)
		c.grant()
		p.Expect("passed")
		epoch := c.epoch()
		c.revoke()
		p.GoOn()
		c.expect(wire.Pending)
		c.is("DRAINING")
		a.away()
		p.Expect("passed again")
		a.back()
		c = a.client()
		c.is("CLOSED")
		if got := c.epoch(); got != epoch+1 {
			t.Errorf("the word has epoch %d, want %d", got, epoch+1)
		}
		p.end()
	})
}

// Threads that submit as fast as they can, with the fake driver as witness.
func TestNothingIsInFlightWhenVgpudIsBack(t *testing.T) {
	a := opening(t)
	flight := witness(t, a)
	p := start(t, a, "fake.so", nil, "submit", "threads")
	p.Expect("ready")
	c := a.client()
	p.GoOn()
	absences := 0
	for working := true; working; {
		c.until("a thread waits, or all have ended", func() bool {
			select {
			case line := <-p.Lines:
				if line != "worked" {
					t.Fatalf("the program said %q; stderr:\n%s", line, p.Stderr)
				}
				working = false
			default:
			}
			return !working || c.page.Waiting().Load() > 0
		})
		if !working {
			break
		}
		epoch := c.epoch()
		a.away()
		c.until("the gate opens", func() bool { return c.epoch() > epoch })
		a.back()
		c = a.client()
		c.until("the gate is closed", func() bool { return c.state() == "CLOSED" })
		if n := flight.Load(); n != 0 {
			t.Fatalf("%d pieces of work are in flight behind the closed gate", n)
		}
		absences++
	}
	if absences == 0 {
		t.Error("vgpud was never away")
	}
	p.end()
}

func waitFor(why string) wire.Msg {
	m := wire.Msg{Type: wire.Wait}
	m.SetText(why)
	return m
}

func bound(a *arbiter) wire.Msg {
	m := wire.Msg{Type: wire.Bound, Count: uint32(len(a.gpus))}
	copy(m.UUID[:], a.gpus)
	return m
}

func TestBindThatWaitsIsExplainedOnce(t *testing.T) {
	a := newArbiter(t)
	a.slow.Store(true)
	p := startIn(t, a, nil, filepath.Join(built, "moments"), "bind")
	c := a.client()
	c.expect(wire.Bind)
	c.send(waitFor("all GPUs are full"))
	p.Says("vgpu: waiting for a GPU: all GPUs are full\n")
	c.send(waitFor("all GPUs are still full"))
	a.away()
	a.back() // asked again, and answered again
	c = a.client()
	c.expect(wire.Bind)
	c.send(waitFor("all GPUs are full after a restart"))
	c.send(bound(a))
	p.Expect("ready")
	p.end()
	if n := strings.Count(p.Stderr.String(), "\n"); n != 1 {
		t.Errorf("stderr has %d lines, want 1:\n%s", n, p.Stderr)
	}
}

func TestBindThatWasAnsweredSinceIsNotExplained(t *testing.T) {
	a := newArbiter(t)
	a.slow.Store(true)
	p := startIn(t, a, nil, filepath.Join(built, "moments"), "bind")
	c := a.client()
	c.expect(wire.Bind)
	// Stopped, it finds both at once.
	pid := p.Cmd.Process.Pid
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	var status unix.WaitStatus
	if _, err := unix.Wait4(pid, &status, unix.WUNTRACED, nil); err != nil || !status.Stopped() {
		t.Fatalf("the program did not stop: %v, %#x", err, status)
	}
	c.send(waitFor("all GPUs are full"))
	c.send(bound(a))
	if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	p.Expect("ready")
	p.end()
	if s := p.Stderr.String(); s != "" {
		t.Errorf("stderr says\n%s", s)
	}
}
