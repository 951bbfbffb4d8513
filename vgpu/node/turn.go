// SPDX-License-Identifier: Apache-2.0

package node

import (
	"time"

	"github.com/sirupsen/logrus"

	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// turn is the turn of a vGPU that holds.
type turn struct {
	granted time.Duration
	pending time.Duration // when the vGPU was told to the engine as pending; 0: it is not
	taking  bool          // somebody waits: take the words as soon as all are idle
	// unknown: a client that worked in this turn died, so its last work ended
	// some time before its end was seen.
	unknown bool
}

// settle looks at the words of v and does what they ask for. It comes after
// every doorbell and every death; what the doorbell said does not matter (R1).
func (l *loop) settle(v *vgpu) {
	switch v.phase {
	case free:
		if v.adopted && !v.removed && v.anyWaiting() {
			if v.turn.pending == 0 {
				v.turn.pending = l.now()
			}
			l.event(arbiter.Event{Kind: arbiter.Pending, VGPU: v.key})
		}
	case holding:
		if len(v.clients) == 0 {
			l.complete(v, arbiter.Complete)
			return
		}
		// A client that came to the gate, or connected, while its vGPU holds.
		for _, c := range v.clients {
			if c.joined {
				openWord(c.page)
			}
		}
		if v.turn.taking {
			l.take(v)
		}
	case draining:
		if v.allClosed() {
			if v.removed {
				l.finishRemoval(v)
			} else {
				l.complete(v, arbiter.Drained)
			}
		}
	}
}

// grant opens the gates of v. contended says that somebody else waits already.
func (l *loop) grant(v *vgpu, contended bool, now time.Duration) {
	if v.removed || v.phase == draining {
		return // the engine will be told that it is gone, or drained
	}
	if v.phase == free {
		for _, uuid := range v.bound {
			g := l.gpus[uuid]
			if g == nil {
				continue
			}
			if g.released != 0 && g.lastHolder != v && v.turn.pending != 0 && v.turn.pending <= g.released {
				g.handover.add(now - g.released)
			}
			g.released = 0
		}
		v.phase = holding
		v.turn = turn{granted: now}
		for _, c := range v.clients {
			c.startTurn()
		}
	}
	var wanted uint32
	if contended || v.turn.taking {
		wanted = 1
	}
	for _, c := range v.clients {
		if c.joined {
			c.page.Wanted().Store(wanted)
			openWord(c.page)
		}
	}
	if len(v.clients) == 0 {
		l.settle(v)
	}
}

// want starts to take the turn of v. First wanted is set on every page, only
// then are the words read (R5).
func (l *loop) want(v *vgpu) {
	if v.phase != holding {
		return
	}
	v.turn.taking = true
	for _, c := range v.clients {
		c.page.Wanted().Store(1)
	}
	l.take(v)
}

func (l *loop) keep(v *vgpu) {
	v.turn.taking = false
	for _, c := range v.clients {
		c.page.Wanted().Store(0)
	}
}

// take takes every word of v if all are idle, and none otherwise (R5). Where a
// word is in use its client is nudged: its thread looks at what is in flight
// only while it knows that somebody waits.
func (l *loop) take(v *vgpu) {
	busy := false
	for _, c := range v.clients {
		switch state(c.page) {
		case wire.Closed, wire.Idle:
		default:
			busy = true
			l.nudge(c)
		}
	}
	if busy {
		return
	}
	for i, c := range v.clients {
		if takeWord(c.page) || state(c.page) == wire.Closed {
			continue
		}
		for _, taken := range v.clients[:i+1] {
			openWord(taken.page)
		}
		l.nudge(c)
		return
	}
	l.complete(v, arbiter.Complete)
}

// revoke is the engine's: the quantum is over.
func (l *loop) revoke(v *vgpu) {
	if v.phase != holding {
		return
	}
	l.closeWords(v)
	l.settle(v)
}

// closeWords closes what is idle and starts to drain the rest (R6).
func (l *loop) closeWords(v *vgpu) {
	v.phase = draining
	v.turn.taking = false
	for _, c := range v.clients {
		revokeWord(c.page)
		if state(c.page) != wire.Closed {
			l.nudge(c)
		}
	}
}

// complete ends the turn of v, whose words are all closed or whose clients are
// dead.
func (l *loop) complete(v *vgpu, kind arbiter.Kind) {
	now := l.now()
	ev := arbiter.Event{Kind: kind, VGPU: v.key}
	ev.LastWork, ev.Idle = v.work(now)
	v.phase = free
	v.turn = turn{}
	// Only now, with all words closed: who was served before is not pending.
	if ev.Waiting = v.anyWaiting(); ev.Waiting {
		v.turn.pending = now
	}
	l.event(ev)
	l.unused(v)
}

// work says when the last work of the turn was complete and how long the vGPU
// was idle before. The numbers are the clients' own, so they are kept within
// the turn: a client that lies is charged a wrong time inside it, no more.
func (v *vgpu) work(now time.Duration) (last, idle time.Duration) {
	if v.turn.unknown || len(v.clients) == 0 {
		return 0, 0
	}
	last = v.turn.granted // if none of them worked
	first := true
	for _, c := range v.clients {
		completed := time.Duration(min(c.page.CompletedNS().Load(), uint64(now)))
		if completed <= v.turn.granted && c.page.Submitted().Load() == c.submittedBefore {
			continue
		}
		last = max(last, completed)
		gap := time.Duration(min(c.page.IdleNS().Load()-c.idleBefore, uint64(now-v.turn.granted)))
		if first || gap < idle {
			idle = gap
		}
		first = false
	}
	return last, min(idle, last-v.turn.granted)
}

// account takes in the end of a turn.
func (l *loop) account(v *vgpu, t *arbiter.Turn) {
	if t.Overrun {
		return // its GPUs were given away long ago
	}
	for _, uuid := range v.bound {
		if g := l.gpus[uuid]; g != nil {
			g.released, g.lastHolder = t.Ended, v
		}
	}
	if l.log.Logger.IsLevelEnabled(logrus.TraceLevel) {
		// The integration tests hold these times, of CLOCK_MONOTONIC, against the
		// simulated GPU's log.
		l.log.WithFields(v.fields()).WithFields(logrus.Fields{
			"granted_ns": t.Granted.Nanoseconds(), "ended_ns": t.Ended.Nanoseconds(), "held": t.Held,
		}).Trace("turn ended")
	}
}

// unused tells the engine when no living process of v uses its GPUs: it may be
// bound anew.
func (l *loop) unused(v *vgpu) {
	if len(v.clients) > 0 || len(v.expected) > 0 || v.phase != free || v.removed {
		return
	}
	v.turn.pending = 0
	l.event(arbiter.Event{Kind: arbiter.Unused, VGPU: v.key})
	if s, ok := l.engine.VGPU(v.key); ok && s.State == arbiter.Unbound {
		v.bound = nil
	}
}
