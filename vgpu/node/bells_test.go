// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// connected gives c a connection, and returns the other end of it.
func (h *house) connected(c *client) int {
	h.t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { unix.Close(pair[1]) })
	c.conn = &conn{v: c.v, fd: pair[0], client: c}
	c.v.conns[c.conn] = struct{}{}
	if c.conn.token, err = h.poller.add(pair[0], func() { h.readable(c.conn) }); err != nil {
		h.t.Fatal(err)
	}
	return pair[1]
}

// nudged is how many messages came to a client since it was asked last.
func nudged(fd int) (n int) {
	var buf [wire.MsgSize]byte
	for {
		if got, _ := unix.Read(fd, buf[:]); got <= 0 {
			return n
		}
		n++
	}
}

// A container with many processes can ring as often as it likes. Each bell was answered
// by a look at all of its pages, and a nudge for each that is in use: so many times so
// many in one round of the loop, which all others wait for.
func TestTheBellsOfARoundAreAnsweredOnce(t *testing.T) {
	const processes = 16
	h := newHouse(t)
	a, b := h.bound("a"), h.bound("b")
	var socks []int
	for range processes {
		c := h.client(a)
		socks = append(socks, h.connected(c))
		h.submits(c)
	}
	h.at(1)
	h.submits(h.client(b)) // somebody waits
	for _, fd := range socks {
		if n := nudged(fd); n != 1 {
			t.Fatalf("%d nudges as somebody began to wait", n)
		}
	}
	for _, kind := range []wire.Type{wire.Pending, wire.IdleMsg, wire.Drained} {
		for _, fd := range socks {
			if _, err := unix.Write(fd, packet(wire.Msg{Type: kind})); err != nil {
				t.Fatal(err)
			}
		}
		h.round()
		for _, fd := range socks {
			if n := nudged(fd); n != 1 {
				t.Fatalf("%d nudges for %d bells in one round", n, processes)
			}
		}
	}
}

// round handles what came until now, as one round of the loop in which no timer fired and
// nothing was posted, as other goroutines do at any time: before those, too, bells are
// answered.
func (h *house) round() {
	h.t.Helper()
	events := make([]unix.EpollEvent, 64)
	n, err := unix.EpollWait(h.poller.ep, events, 0)
	if err != nil {
		h.t.Fatal(err)
	}
	h.poller.handle(slices.DeleteFunc(events[:n], func(ev unix.EpollEvent) bool {
		return ev.Fd == 1 || ev.Fd == 2 // what newPoller adds
	}))
}

// It drained before its deadline came, in the same round.
func TestABellIsAnsweredBeforeATimer(t *testing.T) {
	h := newHouse(t)
	a, b := h.bound("a"), h.bound("b")
	ca, cb := h.client(a), h.client(b)
	sock := h.connected(ca)
	h.submits(ca)
	h.submits(cb)
	h.at(10)
	h.at(12)
	h.clock.offset += h.start + 3*h.drain // the drain's deadline has passed
	ca.page.Word().Store(wire.MakeWord(wire.Closed, 1))
	if _, err := unix.Write(sock, packet(wire.Msg{Type: wire.Drained})); err != nil {
		t.Fatal(err)
	}
	h.readable(ca.conn)
	h.poller.timerFired()
	if s, _ := h.engine.VGPU(a.key); s.Usage.Overruns != 0 || s.Usage.Turns != 1 || b.phase != holding {
		t.Errorf("%+v", s.Usage)
	}
}

// So who asks by the control API after a client rang is told what follows from it.
func TestABellIsAnsweredBeforeWhatWasPosted(t *testing.T) {
	h := newHouse(t)
	a := h.bound("a")
	ca := h.client(a)
	sock := h.connected(ca)
	ca.page.Waiting().Store(1)
	if _, err := unix.Write(sock, packet(wire.Msg{Type: wire.Pending})); err != nil {
		t.Fatal(err)
	}
	h.readable(ca.conn)
	h.poller.post(func() {
		if s, _ := h.engine.VGPU(a.key); s.State != arbiter.Holding {
			t.Errorf("it is %v", s.State)
		}
	})
	h.poller.runPosted()
}

func TestABellOfWhatWasRemovedIsNotAnswered(t *testing.T) {
	h := newHouse(t)
	a := h.bound("a")
	h.submits(h.client(a))
	h.remove(a)
	h.rang(a)
	h.removalLate(a)
	h.answerBells()
	removed := slices.DeleteFunc(since(h.events, 0), func(s string) bool { return s != eventRemoved })
	if len(removed) != 1 || len(h.rung) != 0 {
		t.Errorf("told %d times that it was removed; %d bells are left", len(removed), len(h.rung))
	}
}
