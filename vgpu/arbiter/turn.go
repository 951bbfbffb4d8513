// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"slices"
	"time"

	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// maxVain is how often in a row a drain is resumed although it does not help, before
// it is an overrun. One that it helps may need it again at once: the ranks of a
// collective are cut off in the midst of the next one.
const maxVain = 3

func (e *Engine) nowPending(now time.Duration, v *vgpu) {
	t := v.gang
	switch {
	case len(v.gpus) == 0:
	case v.in && t.state == Holding:
		e.do(Action{Kind: Grant, VGPU: v.id})
	case v.part && t.state == Holding: // its part had ended, the turn has not
		e.arrive(now, v)
		e.grantPart(now, v)
	default:
		e.arrive(now, v)
		if t.state == Idle || t.state == Overrunning {
			e.enqueue(now, t)
		}
		e.catchUp(now, t)
		e.touch(t)
	}
}

// catchUp lets members of t that were bound in the middle of its turn into it, if
// they need no free GPU for that.
func (e *Engine) catchUp(now time.Duration, t *gang) {
	if !t.native || t.state != Holding {
		return
	}
	for _, v := range t.members {
		if v.waits && up(v.gpus) {
			v.part = true
			e.grantPart(now, v)
		}
	}
}

// arrive notes that a client of v stands at the gate.
func (e *Engine) arrive(now time.Duration, v *vgpu) {
	if v.waits {
		return
	}
	v.waits, v.since = true, now
	if v.released != 0 {
		v.history.add(now - v.released)
		v.habit.rested(now-v.released, e.cfg.MinTurn)
		v.released = 0
	}
}

// look takes in whether a client of v stands at the gate now.
func (e *Engine) look(now time.Duration, v *vgpu, ev Event) {
	if v.waits = v.waits && ev.Waiting; ev.Waiting {
		e.arrive(now, v)
	}
}

func (e *Engine) enqueue(now time.Duration, t *gang) {
	t.pending = now
	e.arrivals++
	t.arrival = e.arrivals
	e.queue(now, t)
}

// queue puts t among those that wait for its GPUs, where its arrival says.
func (e *Engine) queue(now time.Duration, t *gang) {
	t.state = Waiting
	e.tag(now, t)
	for _, g := range t.gpus {
		g.waiting.add(t)
	}
	e.touch(t)
}

// tag works out when the next turn of t starts in virtual time.
func (e *Engine) tag(now time.Duration, t *gang) {
	if t.lane != t.class { // what it has used elsewhere says nothing here
		t.lane, t.finish = t.class, 0
	}
	t.start = t.finish
	for _, g := range t.gpus {
		if h := g.holder; h != nil && h.lane == t.lane && !e.contended(now, g, t.lane) {
			// It has the GPU to itself: the virtual time is what it has come
			// to, so that nobody is owed for the time when nobody waited.
			g.advance(h.lane, h.start+h.vtime(now-h.granted))
		}
		t.start = max(t.start, g.virtual[t.lane-request.Low])
	}
}

// retagged: t, which waits, has another class or tag.
func (t *gang) retagged() {
	for _, g := range t.gpus {
		g.waiting.changed(t)
	}
}

func (g *gpu) advance(class request.Priority, to time.Duration) {
	at := &g.virtual[class-request.Low]
	*at = max(*at, to)
}

func (e *Engine) dequeue(t *gang) {
	for _, g := range t.gpus {
		g.waiting.remove(t)
	}
	t.state = Idle
	if t.late {
		t.state = Overrunning
	}
	e.disarm(t.members[0])
	e.touch(t)
}

func (e *Engine) grant(now time.Duration, t *gang) {
	e.looks++
	t.rank = t.class
	t.guarded = e.aged(now, t) || t.owed(now) > 0
	e.dequeue(t)
	t.state, t.taking, t.lingers = Holding, false, false
	t.granted, t.ended, t.end, t.resumes, t.vain = now, now, now+t.quantum, 0, 0
	if !t.native {
		for _, g := range t.gpus {
			g.holder = t
			g.advance(t.lane, e.smallest(now, g, t))
		}
	}
	for _, v := range t.members {
		if len(v.gpus) == 0 {
			continue
		}
		v.resumed, v.helped = false, false
		if v.in { // late: what is in flight of it is in its own turn now
			e.account(now, v, Event{})
		}
		v.part = true
		e.grantPart(now, v)
	}
	t.late = false
}

// grantPart opens the gates of v, whose gang holds.
func (e *Engine) grantPart(now time.Duration, v *vgpu) {
	v.in, v.granted, v.waited, v.released = true, now, 0, 0
	if v.waits {
		v.waited = now - v.since
	}
	v.waits = false
	e.do(Action{Kind: Grant, VGPU: v.id})
	if v.gang.taking {
		e.take(v)
	}
}

func (e *Engine) take(v *vgpu) {
	linger := time.Duration(0)
	if v.gang.lingers {
		linger = v.history.linger(e.cfg.Linger, e.cfg.SwitchCost, v.gang.swap)
	}
	e.do(Action{Kind: Take, VGPU: v.id, Linger: linger})
}

// expired ends a quantum, looks at a drain that takes long, or lets a cap go.
func (e *Engine) expired(now time.Duration, v *vgpu, ev Event) {
	t := v.gang
	switch {
	case v.armed == 0:
	case now < v.armed:
		e.arm(v, v.armed)
	case t.state == Draining && v.in:
		e.drainsLong(now, v, ev)
	case t.state == Holding:
		e.revoke(now, t)
	default: // held back by its cap until now
		v.armed = 0
		e.touch(t)
	}
}

func (e *Engine) revoke(now time.Duration, t *gang) {
	t.state, t.taking, t.lingers = Draining, false, false
	if t.resumes == 0 {
		t.drainBy = now + e.cfg.DrainDeadline
	}
	for _, v := range t.members {
		if !v.in {
			e.disarm(v) // it may be the one that had the quantum
			continue
		}
		v.stuck = false
		e.do(Action{Kind: Revoke, VGPU: v.id})
		e.arm(v, now+e.cfg.Stall)
	}
}

// drainsLong looks at a drain that is not over yet. It may depend on work behind
// the gate: a collective one of whose ranks was not launched, a stream that
// waits for a value which another must write, a host function that needs a lock
// which a thread at the gate holds.
func (e *Engine) drainsLong(now time.Duration, v *vgpu, ev Event) {
	t := v.gang
	e.look(now, v, ev)
	v.stuck, v.idle, v.lingered = !ev.Progress, ev.Idle, ev.Lingered
	v.helped = v.helped || ev.Advanced
	stuck, over := t.stuck(), now >= t.drainBy
	if stuck && slices.ContainsFunc(t.members, func(v *vgpu) bool { return v.helped }) {
		t.vain = 0
	}
	switch {
	case stuck && t.vain < maxVain && (!over || t.resumes == 0) && t.alone():
		e.resume(now, t)
	case stuck, over:
		e.overrun(now, t)
	default:
		e.arm(v, min(t.drainBy, now+e.cfg.Stall))
	}
}

// stuck says whether nothing of t gets on while a thread of it stands at the
// gate.
func (t *gang) stuck() bool {
	for _, v := range t.members {
		if v.in && !v.stuck {
			return false
		}
	}
	return t.waits()
}

// alone says whether t holds its GPUs. One that was native until now, or an
// overrun before a restart, drains beside others: it can not be resumed beside
// them.
func (t *gang) alone() bool {
	for _, v := range t.members {
		if v.part && slices.ContainsFunc(v.gpus, func(g *gpu) bool { return g.holder != t }) {
			return false
		}
	}
	return true
}

// resume opens the gates of t again, for a grace that doubles the first times.
func (e *Engine) resume(now time.Duration, t *gang) {
	t.state, t.guarded = Holding, true
	t.end = now + t.quantum<<min(t.resumes, maxVain)
	t.resumes++
	t.vain++
	for _, v := range t.members {
		v.resumed, v.helped = v.in, false
		switch {
		case v.in:
			v.waits, v.stuck = false, false
			e.disarm(v)
			e.do(Action{Kind: Resume, VGPU: v.id})
		case v.part:
			e.grantPart(now, v)
		}
	}
	e.touch(t)
	if t.native { // since it was revoked
		e.nativeChanged(now, t)
	}
}

// overrunOf is what becomes of v when it does not drain in time: nobody chooses to be
// spared what the node decided for all.
func (e *Engine) overrunOf(v *vgpu) request.Overrun { return max(e.cfg.Overrun, v.req.Overrun) }

// overrun gives the GPUs of t to others although it did not drain. It waits for
// its next turn if it can use one: a thread stands at its gate, or it is frozen
// until then.
func (e *Engine) overrun(now time.Duration, t *gang) {
	still := false
	for _, v := range t.members {
		if !v.in {
			continue
		}
		v.usage.Overruns++
		v.habit.burst = 0 // what it computes from here on is not known
		e.disarm(v)
		e.besideNoMore(v)
		policy := e.overrunOf(v)
		e.do(Action{Kind: Overrun, VGPU: v.id, Overrun: policy})
		e.account(now, v, Event{Idle: v.idle, Lingered: v.lingered})
		v.granted, v.waited = now, 0
		v.still = policy == request.Freeze
		still = still || v.still
	}
	e.chargeGang(now, t)
	t.late, t.state = true, Overrunning
	for _, g := range t.gpus {
		if g.holder == t {
			g.usage.Overruns++
		}
	}
	e.release(now, t)
	if t.name != "" {
		e.regroup(now, t) // the next turn is also of those that were bound in this one
	}
	if still || t.waits() {
		e.enqueue(now, t)
	}
	e.touch(t)
}

// partEnded: the words of v are closed, or its clients dead.
func (e *Engine) partEnded(now time.Duration, v *vgpu, ev Event) {
	t := v.gang
	if turn := e.account(now, v, ev); !t.late {
		v.habit.computed(turn.Held, ev.Gaps, ev.Kind == Complete, e.cfg.MinTurn)
	}
	v.in = false
	v.resumed, v.helped = false, v.helped || v.resumed
	e.besideNoMore(v)
	e.disarm(v)
	e.look(now, v, ev)
	switch {
	case !t.anyIn():
		e.turnEnded(now, t)
	case t.state == Holding && v.waits:
		e.grantPart(now, v)
	case t.state == Overrunning && v.waits:
		e.enqueue(now, t)
	}
	e.touch(t)
}

// release takes its GPUs from t, whose turn was charged.
func (e *Engine) release(now time.Duration, t *gang) {
	for _, g := range t.gpus {
		if g.holder == t {
			g.holder = nil
			if !e.contended(now, g, t.lane) {
				g.advance(t.lane, t.finish) // as in tag
			}
		}
	}
}

// turnEnded: nothing of t is in flight any more.
func (e *Engine) turnEnded(now time.Duration, t *gang) {
	e.chargeGang(now, t)
	e.release(now, t)
	queued := t.state == Waiting // late, and drained while it waited for its next turn
	if queued {
		e.dequeue(t)
	}
	e.touch(t)
	t.late, t.state = false, Idle
	for _, v := range t.members {
		v.part = false
	}
	if t.name != "" {
		e.regroup(now, t)
	}
	switch {
	case len(t.gpus) == 0:
		t.state = Unbound
	case !t.waits():
	case queued:
		e.queue(now, t)
	default:
		e.enqueue(now, t)
	}
}

// account writes down what v used since it was granted, or since its overrun.
func (e *Engine) account(now time.Duration, v *vgpu, ev Event) (turn Turn) {
	t := v.gang
	if t.late && v.still {
		return turn
	}
	turn = Turn{
		Granted: v.granted,
		Ended:   now,
		Waited:  v.waited,
		Drained: t.state == Draining || t.late,
		Late:    t.late,
	}
	if ev.LastWork > 0 {
		turn.Ended = min(max(ev.LastWork, v.granted), now)
	}
	turn.Held = max(turn.Ended-turn.Granted-max(ev.Idle, 0), 0)
	turn.Lingered = min(max(ev.Lingered, 0), now-turn.Granted-turn.Held)
	v.usage.add(turn)
	for _, g := range v.gpus {
		g.usage.add(turn)
	}
	before := max(t.ended, v.granted)
	t.ended = max(t.ended, turn.Ended, turn.Granted+turn.Held+turn.Lingered)
	switch {
	case len(t.members) == 1:
		e.charge(t, v.granted, now, turn.Held+turn.Lingered)
	case t.late: // as in a turn: what its members compute at once counts once
		e.charge(t, v.granted, now, t.ended-before)
	}
	if ev.Gaps != nil {
		v.history.learn(ev.Gaps)
	}
	if v.released = 0; !turn.Drained {
		v.released = turn.Ended
	}
	e.do(Action{Kind: Account, VGPU: v.id, Turn: turn})
	return turn
}

// chargeGang counts the turn of several vGPUs, which is over or late. What they
// use while they are late is counted as each of them ends.
func (e *Engine) chargeGang(now time.Duration, t *gang) {
	if len(t.members) != 1 && !t.late {
		e.charge(t, t.granted, now, t.ended-t.granted)
	}
}

// charge counts what t used of its shares.
func (e *Engine) charge(t *gang, from, now, used time.Duration) {
	if t.late { // others have had their turns since t.start
		t.finish += t.vtime(used)
		t.start = max(t.start, t.finish)
		if t.state == Waiting {
			t.retagged()
		}
		from = now // it may have waited meanwhile
	} else {
		t.finish = t.start + t.vtime(used)
	}
	t.minimum.take(from, now, used)
	t.maximum.take(from, now, used)
}
