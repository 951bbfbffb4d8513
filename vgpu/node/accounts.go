// SPDX-License-Identifier: Apache-2.0

package node

import (
	"time"

	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
)

// What outlives vgpud of a vGPU: what it used in the turns that ended, what was
// told of it, and the turn that is under way with what it is accounted from. The
// next vgpud accounts that turn as if it had been there all the time.

// maxBaselines is of how many clients of a turn the baselines are kept. The idle
// gaps that others had before a kill -9 in this turn count as held.
const maxBaselines = 8

// baseline is a client as it was when its turn began.
type baseline struct{ client, idle, submitted uint64 }

// shown is the most that was told of a vGPU. It never gets less, whatever its
// clients write into their pages and whichever of them are not back yet.
type shown struct {
	held                           time.Duration
	submissions, unhooked, unknown uint64
}

func (s *shown) raise(o shown) {
	s.held = max(s.held, o.held)
	s.submissions = max(s.submissions, o.submissions)
	s.unhooked = max(s.unhooked, o.unhooked)
	s.unknown = max(s.unknown, o.unknown)
}

// kept is the account of a vGPU as it is kept.
type kept struct {
	usage       arbiter.Usage
	submissions uint64 // of clients that are gone
	rubbish     uint64
	stats       stats // of clients that are gone
	shown       shown

	// The turn under way, or the wait for one.
	granted, waited, pending time.Duration // 0: none
	done                     work
	baselines                [maxBaselines]baseline
	clients                  int // that have one
}

// pack is a in words.
func (k *kept) pack(a *account) {
	w := a.values[:0]
	w = appendUsage(w, k.usage)
	w = append(w, k.submissions, k.rubbish, k.stats.unhooked, k.stats.unknown)
	w = append(w, uint64(k.shown.held), k.shown.submissions, k.shown.unhooked, k.shown.unknown)
	var done uint64
	if k.done.any {
		done = 1
	}
	w = append(w, uint64(k.granted), uint64(k.waited), uint64(k.pending), done, uint64(k.done.last), uint64(k.done.idle))
	for _, b := range k.baselines[:k.clients] {
		w = append(w, b.client, b.idle, b.submitted)
	}
	a.n = len(w)
}

// unpack reads what pack made. An account that was never written is empty.
func (a *account) unpack() (k kept) {
	w := a.values[:]
	next := func() (v uint64) {
		v, w = w[0], w[1:]
		return v
	}
	k.usage = takeUsage(next)
	k.submissions, k.rubbish, k.stats = next(), next(), stats{next(), next()}
	k.shown = shown{time.Duration(next()), next(), next(), next()}
	k.granted, k.waited, k.pending = time.Duration(next()), time.Duration(next()), time.Duration(next())
	k.done = work{next() == 1, time.Duration(next()), time.Duration(next())}
	for used := valueWords - len(w); used+3*(k.clients+1) <= a.n; k.clients++ {
		k.baselines[k.clients] = baseline{next(), next(), next()}
	}
	return k
}

func appendUsage(w []uint64, u arbiter.Usage) []uint64 {
	return append(w, uint64(u.Held), uint64(u.Waited), uint64(u.Lingered), u.Turns, u.Drains, u.Overruns)
}

func takeUsage(next func() uint64) arbiter.Usage {
	return arbiter.Usage{
		Held: time.Duration(next()), Waited: time.Duration(next()), Lingered: time.Duration(next()),
		Turns: next(), Drains: next(), Overruns: next(),
	}
}

// A GPU's account: its usage, and the write of a vGPU's slot that it goes with.
const gpuValues = 8

func packGPU(uuid arbiter.UUID, u arbiter.Usage, slot, seq uint64) account {
	a := account{kind: slotGPU, key: string(uuid), n: gpuValues}
	copy(a.values[:], append(appendUsage(make([]uint64, 0, gpuValues), u), slot, seq))
	return a
}

func (a *account) gpuUsage() arbiter.Usage {
	w := a.values[:]
	return takeUsage(func() (v uint64) {
		v, w = w[0], w[1:]
		return v
	})
}

// after is the slot without whose write seq this write of a GPU's slot does not
// count; 0: it counts.
func (a *account) after() (slot, seq uint64) { return a.values[gpuValues-2], a.values[gpuValues-1] }

// settled makes an account that counts by itself.
func (a *account) settled() {
	if a.kind == slotGPU {
		a.values[gpuValues-2] = 0
	}
}

// account finds the account of v again, or starts one. It comes before add.
func (a *accounts) account(v *vgpu, now time.Duration) {
	var old account
	v.account, old = a.take(slotVGPU, string(v.key))
	k := old.unpack()
	v.before = k
	v.submissions, v.rubbish, v.stats, v.shown = k.submissions, k.rubbish, k.stats, k.shown
	if max(k.granted, k.pending) <= now { // else vgpud sees another clock now
		v.turn = turn{granted: k.granted, waited: k.waited, pending: k.pending, done: k.done}
	}
}

// takeGPU finds the account of a GPU again, or starts one.
func (a *accounts) takeGPU(uuid arbiter.UUID) (*slot, arbiter.Usage) {
	s, old := a.take(slotGPU, string(uuid))
	return s, old.gpuUsage()
}

// keepAccount writes the account of v as it stands now.
func (l *loop) keepAccount(v *vgpu) {
	s, ok := l.engine.VGPU(v.key)
	if !ok || v.account == nil {
		return // not added yet
	}
	k := kept{
		usage: s.Usage, submissions: v.submissions, rubbish: v.rubbish, stats: v.stats, shown: v.shown,
		granted: v.turn.granted, waited: v.turn.waited, pending: v.turn.pending, done: v.turn.done,
	}
	if v.turn.late { // after a restart it is a turn as any other, from then on
		k.granted, k.done = 0, work{}
	}
	switch {
	case !v.adopted:
		k.baselines, k.clients = v.before.baselines, v.before.clients
	case v.phase != free:
		for _, c := range v.clients[:min(len(v.clients), maxBaselines)] {
			k.baselines[k.clients] = baseline{c.id, c.idleBefore, c.submittedBefore}
			k.clients++
		}
	}
	a := account{kind: slotVGPU, key: string(v.key)}
	k.pack(&a)
	v.account.write(&a)
}

// keepTurn writes the accounts of v and of its GPUs, of which a turn was accounted
// or got late.
func (l *loop) keepTurn(v *vgpu) {
	l.keepGPUs(v)
	l.keepAccount(v)
}

// keepGPUs writes the accounts of the GPUs of v. They count once that of v is
// written.
func (l *loop) keepGPUs(v *vgpu) {
	for _, uuid := range v.bound {
		g, status := l.gpus[uuid], arbiter.GPUStatus{}
		if g != nil {
			status, _ = l.engine.GPU(uuid)
		}
		if g == nil || g.account == nil {
			continue
		}
		a := packGPU(uuid, status.Usage, v.account.no, v.account.seq+1)
		g.account.write(&a)
	}
}

// departed writes what the removal of a vGPU added to the accounts of its GPUs, and
// gives its own back.
func (l *loop) departed(v *vgpu) {
	if v.account == nil {
		return
	}
	l.keepGPUs(v)
	l.accounts.release(v.account)
	v.account = nil
}

// restart gives a client that came back after a restart the baseline that it had
// in the turn under way.
func (k *kept) restart(c *client) {
	for _, b := range k.baselines[:k.clients] {
		if b.client == c.id {
			c.idleBefore, c.submittedBefore = b.idle, b.submitted
		}
	}
}

// credit makes a turn of which nobody is left who knows what it did count for what
// was told of it.
func (l *loop) credit(v *vgpu) {
	s, _ := l.engine.VGPU(v.key)
	t := &v.turn
	told := v.shown.held - s.Usage.Held
	if told > 0 && (!t.done.any || told > t.done.last-t.granted-t.done.idle) {
		t.done = work{any: true, last: t.granted + told}
	}
}

// regain counts what clients submitted that died while vgpud was away, as far as
// that was told. All that live are back.
func (v *vgpu) regain() {
	if told, now := v.shown.submissions, v.submitted(); told > now {
		v.submissions += told - now
	}
}

// submitted sums up what the clients of v submitted.
func (v *vgpu) submitted() uint64 {
	sum := v.submissions
	for _, c := range v.clients {
		sum += c.page.Submitted().Load()
	}
	return sum
}

// heldNow is what v has held so far in its turn, as it would be accounted if its
// work were complete now.
func (v *vgpu) heldNow(now time.Duration) time.Duration {
	if v.phase == free || v.cold && !v.runs { // cold: it stands still
		return 0
	}
	last, idle := v.work(now, true)
	return max(last-v.turn.granted-idle, 0)
}

// show is what is told of v now. Whoever was told keeps it over a kill -9.
func (l *loop) show(v *vgpu, held time.Duration) shown {
	not := v.ungated()
	now := shown{
		held: held + v.heldNow(l.now()), submissions: v.submitted(),
		unhooked: not.unhooked, unknown: not.unknown,
	}
	before := v.shown
	v.shown.raise(now)
	if v.shown != before {
		l.keepAccount(v)
	}
	return v.shown
}
