// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
	"github.com/vgpu-shim/vgpu/vgpu/request"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// house is a loop that the test is, on whose clock minutes pass at once, with one GPU:
// a quantum is ten of them, a drain may take two and a half, and whoever is idle may keep the GPU
// for an hour.
type house struct {
	t *testing.T
	*loop
	start time.Duration
}

func newHouse(t *testing.T) *house {
	l := idle(t, 1).loop
	l.engine = arbiter.New(arbiter.Config{
		Quantum: 10 * time.Minute, DrainDeadline: 150 * time.Second, Stall: 75 * time.Second, Linger: arbiter.Linger(time.Hour),
	})
	l.gpuUp(arbiter.UUID(gpuUUID(0)))
	return &house{t: t, loop: l, start: l.now()}
}

// at lets time pass until so many minutes after the start, and a second, and what
// is due then happen.
func (h *house) at(minutes int) {
	h.t.Helper()
	if d := h.start + time.Duration(minutes)*time.Minute + time.Second - h.now(); d > 0 {
		h.clock.offset += d
	}
	h.timersFired()
}

// bound makes a vGPU that is bound.
func (h *house) bound(name string) *vgpu {
	v := &vgpu{
		key: arbiter.ID(name), listen: -1, adopted: true, req: request.Request{Count: 1},
		rec: record{Version: recordVersion, ID: name, Dir: name, Container: name},
	}
	h.accounts.account(v, h.now())
	h.add(v)
	h.event(arbiter.Event{Kind: arbiter.Bind, VGPU: v.key})
	return v
}

// client makes a process of v, whose page the test writes.
func (h *house) client(v *vgpu) *client {
	h.t.Helper()
	h.lastClient++
	page, fd, err := wire.NewPage(h.lastClient)
	if err != nil {
		h.t.Fatal(err)
	}
	unix.Close(fd)
	c := &client{v: v, id: h.lastClient, inode: h.lastClient, page: page, pidfd: -1, joined: true}
	c.startTurn()
	v.clients = append(v.clients, c)
	return c
}

// submits comes to the gate with work, which passes if it is open.
func (h *house) submits(c *client) {
	p := c.page
	w := p.Word().Load()
	switch wire.State(w) {
	case wire.Idle:
		p.Word().Store(wire.MakeWord(wire.Open, wire.Epoch(w)))
		if done := p.CompletedNS().Load(); done > uint64(c.v.turn.granted) {
			p.IdleNS().Add(uint64(h.now()) - done)
		}
	case wire.Closed:
		p.Waiting().Store(1)
		h.settle(c.v)
		if state(p) != wire.Open {
			return // it waits
		}
	}
	p.Waiting().Store(0)
	p.Submitted().Add(1)
}

// completes is when all that c submitted is complete, and its process sees it.
func (h *house) completes(c *client) {
	h.t.Helper()
	p := c.page
	w := p.Word().Load()
	p.CompletedNS().Store(uint64(h.now()))
	switch wire.State(w) {
	case wire.Open:
		p.Word().Store(wire.MakeWord(wire.Idle, wire.Epoch(w)))
	case wire.Draining:
		p.Word().Store(wire.MakeWord(wire.Closed, wire.Epoch(w)))
	default:
		h.t.Fatalf("complete while its word is %s", wire.StateName(wire.State(w)))
	}
	h.settle(c.v)
}

// used fails unless the turns of v that ended come to so many minutes.
func (h *house) used(v *vgpu, held, lingered int) {
	h.t.Helper()
	s, _ := h.engine.VGPU(v.key)
	got := func(d time.Duration) int { return int(d.Round(time.Minute) / time.Minute) }
	if got(s.Usage.Held) != held || got(s.Usage.Lingered) != lingered || s.Usage.Turns == 0 {
		h.t.Errorf("%s held for %d minutes and lingered for %d in %d turns, want %d and %d",
			v.key, got(s.Usage.Held), got(s.Usage.Lingered), s.Usage.Turns, held, lingered)
	}
}

func TestWhatATurnLingeredCountsHoweverItEnds(t *testing.T) {
	t.Run("taken when it had lingered", func(t *testing.T) {
		h := newHouse(t)
		a, b := h.bound("a"), h.bound("b")
		ca, cb := h.client(a), h.client(b)
		h.submits(ca)
		h.at(1)
		h.completes(ca)
		h.at(2)
		h.submits(cb)
		h.at(5)
		a.turn.linger = time.Minute
		h.settle(a)
		h.used(a, 1, 3)
	})
	t.Run("revoked while it lingers", func(t *testing.T) {
		h := newHouse(t)
		a, b := h.bound("a"), h.bound("b")
		ca, cb := h.client(a), h.client(b)
		h.submits(ca)
		h.at(1)
		h.completes(ca)
		h.at(2)
		h.submits(cb)
		h.at(10)
		h.used(a, 1, 8)
	})
	t.Run("revoked while it computes", func(t *testing.T) {
		h := newHouse(t)
		a, b := h.bound("a"), h.bound("b")
		ca, cb := h.client(a), h.client(b)
		h.submits(ca)
		h.at(1)
		h.submits(cb)
		h.at(2)
		h.completes(ca)
		h.at(5)
		h.submits(ca)
		h.at(10)
		h.at(11)
		h.completes(ca)
		h.used(a, 8, 3)
	})
	t.Run("resumed in between", func(t *testing.T) {
		h := newHouse(t)
		a, b := h.bound("a"), h.bound("b")
		ca, other, cb := h.client(a), h.client(a), h.client(b)
		h.submits(ca)
		h.submits(other)
		h.at(1)
		h.submits(cb)
		h.at(2)
		h.completes(ca)
		h.completes(other)
		h.at(5)
		h.submits(ca)
		h.submits(other)
		h.completes(other)
		h.at(10)
		h.submits(other) // waits, and what ca has in flight depends on it
		h.at(12)         // other has drained since
		h.at(13)
		h.submits(other)
		h.completes(ca)
		h.at(31) // the grace
		h.completes(other)
		h.used(a, 28, 3)
	})
}

func TestWhatNobodyWaitsForIsNotLingered(t *testing.T) {
	h := newHouse(t)
	a, b := h.bound("a"), h.bound("b")
	ca, cb := h.client(a), h.client(b)
	h.submits(ca)
	h.at(1)
	h.completes(ca)
	h.at(2)
	h.submits(cb)
	h.at(3)
	h.remove(b)
	h.at(5)
	c := h.bound("c")
	h.submits(h.client(c))
	h.at(10)
	h.used(a, 1, 5)
}

// What a client writes into its page is its own. A container that says that it was idle
// or that nothing of it is complete is charged for as long as others waited all the
// same: else its share would never be used up, and it would be next again each time.
func TestALyingClientIsChargedForAsLongAsOthersWaited(t *testing.T) {
	const idles = 1 << 50
	for _, c := range []struct {
		description    string
		before, during func(*client) // somebody waits
		end            func(*house, *client)
		held, lingered int
	}{
		{
			description: "it was idle before others waited",
			before:      func(c *client) { c.page.IdleNS().Add(idles) },
			held:        0, lingered: 9,
		},
		{
			description: "it was idle while others waited",
			during:      func(c *client) { c.page.IdleNS().Add(idles) },
			held:        0, lingered: 9,
		},
		{
			description: "nothing was ever complete",
			end: func(h *house, c *client) {
				c.page.CompletedNS().Store(0)
				c.page.Word().Store(wire.MakeWord(wire.Closed, 1))
				h.settle(c.v)
			},
			held: 0, lingered: 9,
		},
		{
			description: "it was idle, and does not drain",
			before: func(c *client) {
				c.page.IdleNS().Add(idles)
				c.page.CompletedNS().Store(1 << 62)
			},
			end:  func(h *house, _ *client) { h.at(12); h.at(13) },
			held: 0, lingered: 11,
		},
		{
			description: "it was idle, and its process ends",
			before:      func(c *client) { c.page.IdleNS().Add(idles) },
			end:         func(h *house, c *client) { h.died(c) },
			held:        0, lingered: 9,
		},
	} {
		t.Run(c.description, func(t *testing.T) {
			h := newHouse(t)
			a, b := h.bound("a"), h.bound("b")
			ca, cb := h.client(a), h.client(b)
			h.submits(ca)
			h.at(1)
			if c.before != nil {
				c.before(ca)
			}
			h.at(2)
			h.submits(cb)
			if c.during != nil {
				c.during(ca)
			}
			h.at(10)
			h.at(11)
			if c.end == nil {
				c.end = (*house).completes
			}
			c.end(h, ca)
			h.used(a, c.held, c.lingered)
			if b.phase != holding {
				t.Errorf("b is %d", b.phase)
			}
		})
	}
}

// Whoever does not lie is charged for what it used, and what it lingered, exactly.
func TestAnHonestClientIsChargedForNoMore(t *testing.T) {
	t.Run("two processes by turns", func(t *testing.T) {
		h := newHouse(t)
		a, b := h.bound("a"), h.bound("b")
		c1, c2, cb := h.client(a), h.client(a), h.client(b)
		h.submits(c1)
		h.submits(c2)
		h.at(1)
		h.submits(cb)
		h.at(2)
		h.completes(c1)
		h.at(6)
		h.submits(c1)
		h.completes(c2)
		h.at(9)
		h.submits(c2)
		h.at(10)
		h.at(11)
		h.completes(c1)
		h.completes(c2)
		h.used(a, 8, 3) // each was idle for 3 minutes at least
	})
	t.Run("one of two processes has no work", func(t *testing.T) {
		h := newHouse(t)
		a, b := h.bound("a"), h.bound("b")
		c1, _, cb := h.client(a), h.client(a), h.client(b)
		h.submits(c1)
		h.at(1)
		h.submits(cb)
		h.at(2)
		h.completes(c1)
		h.at(6)
		h.submits(c1)
		h.at(10)
		h.at(11)
		h.completes(c1)
		h.used(a, 7, 4)
	})
	t.Run("its process ends while it lingers", func(t *testing.T) {
		h := newHouse(t)
		a, b := h.bound("a"), h.bound("b")
		ca, cb := h.client(a), h.client(b)
		h.submits(ca)
		h.at(3)
		h.completes(ca)
		h.at(5)
		h.submits(cb)
		h.at(7)
		h.died(ca)
		h.used(a, 3, 2)
	})
	t.Run("its process ends while it computes", func(t *testing.T) {
		h := newHouse(t)
		a, b := h.bound("a"), h.bound("b")
		ca, cb := h.client(a), h.client(b)
		h.submits(ca)
		h.at(5)
		h.submits(cb)
		h.at(7)
		h.died(ca)
		h.used(a, 7, 0)
	})
	t.Run("an overrun after it lingered", func(t *testing.T) {
		h := newHouse(t)
		a, b := h.bound("a"), h.bound("b")
		ca, cb := h.client(a), h.client(b)
		h.submits(ca)
		h.at(1)
		h.submits(cb)
		h.at(2)
		h.completes(ca)
		h.at(5)
		h.submits(ca)
		h.at(10)
		h.at(13)
		h.used(a, 10, 3)
	})
}
