// SPDX-License-Identifier: Apache-2.0

package node

import (
	"slices"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// turn is the turn of a vGPU that holds.
type turn struct {
	granted time.Duration
	late    bool          // it overran; granted is when
	waited  time.Duration // before it
	pending time.Duration // when the vGPU was told to the engine as pending; 0: it is not
	taking  bool          // somebody waits: take the words as soon as all are idle
	wanted  bool          // likewise, also after a revoke
	linger  time.Duration // ... and were for so long
	since   time.Duration // when somebody began to wait in it; 0: nobody does
	revoked time.Duration // when its gates were closed; 0: they were not
	drain   time.Duration // of the turn before, which ended now: from then until its end; 0: it was not revoked
	done    work          // of the clients that died in it
}

// rang says that a doorbell of v rang. Its words are looked at when all that came in
// this round has been read, once for all bells: each look is at all pages, and nudges
// those that are in use.
func (l *loop) rang(v *vgpu) {
	if !v.rung {
		v.rung = true
		l.rung = append(l.rung, v)
	}
}

// answerBells settles those whose bells rang.
func (l *loop) answerBells() {
	for i := 0; i < len(l.rung); i++ {
		v := l.rung[i]
		v.rung = false
		if l.vgpus[v.key] == v { // else it was removed meanwhile
			l.settle(v)
		}
	}
	clear(l.rung)
	l.rung = l.rung[:0]
}

// settle looks at the words of v and does what they ask for. It comes after
// doorbells and every death; what the doorbell said does not matter (R1).
func (l *loop) settle(v *vgpu) {
	switch v.phase {
	case free:
		if v.adopted && !v.removed && v.anyWaiting() {
			if v.turn.pending == 0 {
				v.turn.pending = l.now()
				l.keepAccount(v)
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
		switch {
		case v.allClosed() && v.removed:
			kind := arbiter.Drained
			if s, _ := l.engine.VGPU(v.key); s.State == arbiter.Holding { // it was revoked by its removal
				kind = arbiter.Complete
			}
			l.complete(v, kind)
			l.finishRemoval(v)
		case v.allClosed():
			l.complete(v, arbiter.Drained)
		case !v.removed && v.anyWaiting(): // if it overran, it can have its next turn without
			l.event(arbiter.Event{Kind: arbiter.Pending, VGPU: v.key})
		}
	}
}

// grant opens the gates of v. contended says that somebody else waits already.
func (l *loop) grant(v *vgpu, contended bool, now time.Duration) {
	if v.removed {
		return // the engine will be told that it is gone
	}
	late := v.phase == draining // since an overrun
	if v.cold {
		l.thaw(v)
	}
	if v.phase != holding {
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
		before := v.turn.pending
		v.turn = turn{granted: now}
		if before != 0 {
			v.turn.waited = now - before
		}
		v.startTurn()
		l.sampleHeld(v, now)
		l.keepAccount(v)
	}
	for _, c := range v.clients {
		if !c.joined {
			continue
		}
		c.opens()
		l.wanted(c, contended || v.turn.taking)
		if late {
			resumeWord(c.page)
		} else {
			openWord(c.page)
		}
	}
	if len(v.clients) == 0 {
		l.settle(v)
	}
}

// resume opens what was revoked: the drain of v, or of another vGPU of its gang,
// depends on work that stands at the gate.
func (l *loop) resume(v *vgpu, contended bool) {
	if v.phase != draining || v.removed {
		return
	}
	l.log.WithFields(v.fields()).Debug("a drain made no progress while threads waited at the gate; it is resumed")
	v.phase = holding
	if v.turn.wanted = contended; !contended {
		v.turn.since = 0 // whoever waited left while it drained
	}
	for _, c := range v.clients {
		if c.joined {
			c.opens()
			l.wanted(c, contended)
			resumeWord(c.page)
		}
	}
	l.settle(v)
}

// deadline tells the engine that a time has come, and how the drain gets on if
// there is one.
func (l *loop) deadline(v *vgpu) {
	ev := arbiter.Event{Kind: arbiter.Deadline, VGPU: v.key}
	if v.phase == draining {
		ev.Waiting, ev.Progress, ev.Advanced = v.anyWaiting(), v.progressed(), v.advanced()
		now := l.now()
		_, ev.Idle = v.work(now, true)
		ev.Lingered = v.lingered(now, now, ev.Idle)
	}
	l.event(ev)
}

// progressed says whether work of v was seen to complete since it was asked last,
// or a process of it drained.
func (v *vgpu) progressed() bool {
	var sum uint64
	for _, c := range v.clients {
		sum += c.page.Progress().Load()
		if state(c.page) == wire.Closed {
			sum++
		}
	}
	before := v.progress
	v.progress = sum
	return sum != before
}

// opens notes what is complete of c, whose gate is about to be opened.
func (c *client) opens() {
	c.completionsBefore, c.drained = c.page.Completions().Load(), state(c.page) == wire.Closed
}

// advanced says whether v, which drains, got on since it was resumed: a client knows
// of more work that is complete, or one that had not drained has.
func (v *vgpu) advanced() bool {
	return slices.ContainsFunc(v.clients, func(c *client) bool {
		return c.page.Completions().Load() > c.completionsBefore || !c.drained && state(c.page) == wire.Closed
	})
}

// want starts to take the turn of v. First wanted is set on every page, only
// then are the words read (R5).
func (l *loop) want(v *vgpu, linger time.Duration) {
	if v.phase != holding {
		return
	}
	if v.turn.since == 0 { // also after a resume they have waited since
		v.turn.since = l.now()
		for _, c := range v.clients {
			c.idleWanted = c.page.IdleNS().Load()
		}
	}
	v.turn.taking, v.turn.wanted, v.turn.linger = true, true, linger
	for _, c := range v.clients {
		l.wanted(c, true)
	}
	l.take(v)
}

// company is for how long others are expected to come back for a GPU that they
// waited for.
const company = time.Second

// wanted says to c whether somebody else waits, and that whoever does or did until now
// may again.
func (l *loop) wanted(c *client, waits bool) {
	if waits || c.page.Wanted().Load() != 0 {
		c.page.ExpectedNS().Store(uint64(l.now() + company))
	}
	if waits {
		c.page.Wanted().Store(1)
	} else {
		c.page.Wanted().Store(0)
	}
}

func (l *loop) keep(v *vgpu) {
	v.turn.taking, v.turn.wanted, v.turn.since = false, false, 0
	l.arm(&v.linger, 0)
	for _, c := range v.clients {
		l.wanted(c, false)
	}
}

// youth is how old a turn is before its clients are nudged because somebody waits.
// Most bursts end by a call that waits for them, which sees wanted by itself. A
// client's thread that is woken at the very grant only takes the CPU from the one
// that was waiting for it.
const youth = 200 * time.Microsecond

// take takes every word of v if all are idle, and were for as long as it may
// linger, and none otherwise (R5). Where a word is in use its client is nudged:
// its thread looks at what is in flight only while it knows that somebody waits.
func (l *loop) take(v *vgpu) {
	busy, young := false, v.turn.granted+youth > l.now()
	for _, c := range v.clients {
		switch state(c.page) {
		case wire.Closed, wire.Idle:
		default:
			busy = true
			if !young {
				l.nudge(c)
			}
		}
	}
	if busy {
		if young && !v.young {
			v.young = true
			l.young = append(l.young, v)
		}
		return
	}
	if v.turn.linger > 0 {
		now := l.now()
		if last, _ := v.work(now, false); last > v.turn.granted && last+v.turn.linger > now {
			l.arm(&v.linger, last+v.turn.linger)
			return
		}
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

// grownUp looks again at the turns that were young, and returns how long the next
// one will be; 0 if there is none.
func (l *loop) grownUp() time.Duration {
	for len(l.young) > 0 {
		v := l.young[0]
		if wait := v.turn.granted + youth - l.now(); wait > 0 && v.turn.taking {
			return wait
		}
		l.young = slices.Delete(l.young, 0, 1)
		v.young = false
		if v.phase == holding && v.turn.taking {
			l.take(v)
		}
	}
	return 0
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
	v.turn.taking, v.turn.revoked = false, l.now()
	l.arm(&v.linger, 0)
	v.progressed()
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
	ev.LastWork, ev.Idle = v.work(now, false)
	ev.Lingered, ev.Gaps = v.lingered(now, ev.LastWork, ev.Idle), v.gapsInTurn()
	v.phase = free
	if v.cold {
		l.thaw(v) // nothing of it is in flight: it drained in the last moment, or died
	}
	l.arm(&v.linger, 0)
	var drain time.Duration
	if v.turn.revoked != 0 {
		drain = now - v.turn.revoked
	}
	v.turn = turn{wanted: v.turn.wanted, linger: v.turn.linger, drain: drain}
	// Only now, with all words closed: who was served before is not pending.
	if ev.Waiting = !v.removed && v.anyWaiting(); ev.Waiting {
		v.turn.pending = now
	}
	l.event(ev)
	l.lookAtOldSwaps(v)
	l.unused(v)
}

// work is what clients did in a turn. The numbers are their own, so they are
// kept within the turn: a client that lies is charged a wrong time inside it, no
// more, and no less than for as long as others waited (lingered).
type work struct {
	any  bool
	last time.Duration // when the last of it was complete
	idle time.Duration // gaps before that; of several clients the smallest
}

func (w work) and(o work) work {
	switch {
	case !w.any:
		return o
	case !o.any:
		return w
	}
	return work{true, max(w.last, o.last), min(w.idle, o.idle)}
}

// work is what c did in the turn of its vGPU. What it has in flight counts until
// now if busy is set, as it does if c died just now: it was torn down with it.
func (c *client) work(now time.Duration, busy bool) work {
	granted := c.v.turn.granted
	w := work{
		last: time.Duration(min(c.page.CompletedNS().Load(), uint64(now))),
		idle: time.Duration(min(c.page.IdleNS().Load()-c.idleBefore, uint64(now-granted))),
	}
	w.any = w.last > granted || c.page.Submitted().Load() != c.submittedBefore
	switch state(c.page) {
	case wire.Closed, wire.Idle:
	default:
		if busy {
			w.any, w.last = true, now
		}
	}
	w.last = max(w.last, granted)
	return w
}

// work is what all clients of v did in its turn; busy as for one client.
func (v *vgpu) work(now time.Duration, busy bool) (last, idle time.Duration) {
	all := v.turn.done
	for _, c := range v.clients {
		all = all.and(c.work(now, busy))
	}
	if !all.any {
		return v.turn.granted, 0
	}
	return all.last, min(all.idle, all.last-v.turn.granted)
}

// lingered is how long v, whose last work was complete then, kept its GPUs idle since
// somebody waited: the gaps that ended, of several clients that had work the smallest,
// and the last one. These are the clients' own numbers, as what it held is; for all of
// the time in which others waited it held its GPUs or lingered, whatever they say.
func (v *vgpu) lingered(now, last, idle time.Duration) time.Duration {
	if v.turn.since == 0 {
		return 0
	}
	waited := now - v.turn.since
	gaps, any := waited, false
	for _, c := range v.clients {
		if c.work(now, false).any {
			gaps, any = min(gaps, time.Duration(min(c.page.IdleNS().Load()-c.idleWanted, uint64(waited)))), true
		}
	}
	if !any {
		gaps = 0
	}
	held := last - v.turn.granted - idle
	return max(min(gaps+now-max(last, v.turn.since), waited), waited-held)
}

// gapsInTurn counts the idle gaps of the clients of v in its turn; nil if there
// were none. What it returns is good until it is called again.
func (v *vgpu) gapsInTurn() *arbiter.Gaps {
	any := false
	for _, c := range v.clients {
		if c.page.IdleNS().Load() == c.idleBefore {
			continue
		}
		if !any {
			any, v.gaps = true, arbiter.Gaps{}
		}
		for i := range v.gaps {
			n := c.page.Gaps()[i].Load()
			v.gaps[i] += n - c.gapsBefore[i]
			c.gapsBefore[i] = n
		}
	}
	if !any {
		return nil
	}
	return &v.gaps
}

// idle says whether v, which holds, has nothing in flight and keeps its turn only
// because nobody waits.
func (v *vgpu) idle() bool {
	for _, c := range v.clients {
		if s := state(c.page); s != wire.Idle && s != wire.Closed {
			return false
		}
	}
	return true
}

// account takes in the end of a turn.
func (l *loop) account(v *vgpu, t *arbiter.Turn) {
	l.keepTurn(v)
	v.late.ended = t.Ended
	l.sampleHeld(v, l.now())
	if t.Late {
		return // its GPUs were given away long ago
	}
	for _, uuid := range v.bound {
		if g := l.gpus[uuid]; g != nil {
			g.released, g.lastHolder = 0, v
			if v.turn.wanted { // else whoever comes next waited for its cap, if at all
				g.released = min(t.Ended+v.turn.linger, l.now())
			}
		}
	}
	if l.log.Logger.IsLevelEnabled(logrus.TraceLevel) {
		// The integration tests hold these times, of CLOCK_MONOTONIC, against the
		// simulated GPU's log; the benchmark takes drains from them.
		l.log.WithFields(v.fields()).WithFields(logrus.Fields{
			"granted_ns": t.Granted.Nanoseconds(), "ended_ns": t.Ended.Nanoseconds(), "held": t.Held,
			"drain_ns": v.turn.drain.Nanoseconds(),
		}).Trace("turn ended")
	}
}

// unused tells the engine when no living process of v uses its GPUs, nor was told
// which they are: it may be bound anew.
func (l *loop) unused(v *vgpu) {
	if len(v.clients) > 0 || len(v.expected) > 0 || v.phase != free || v.removed || !v.adopted {
		return
	}
	if v.turn.pending != 0 {
		v.turn.pending = 0
		l.keepAccount(v)
	}
	if v.observed() {
		return
	}
	if l.stepping { // the engine would take it in later, and not have unbound v below
		l.poller.post(func() {
			if l.vgpus[v.key] == v {
				l.unused(v)
			}
		})
		return
	}
	l.event(arbiter.Event{Kind: arbiter.Unused, VGPU: v.key})
	if s, ok := l.engine.VGPU(v.key); ok && s.State == arbiter.Unbound {
		if v.bound != nil && v.binding == 0 {
			l.tell(eventUnbound, v, "")
		}
		v.bound = nil
	}
}
