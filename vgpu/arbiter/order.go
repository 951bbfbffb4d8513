// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"time"

	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// Who goes next on a GPU, of those that wait for it and are not held back by a
// cap:
//
//  1. whoever waited for longer than the ageing bound, the longest first: low
//     is late, never lost;
//  2. whoever has not had its guaranteed minimum, the one that is owed most;
//  3. the higher class;
//  4. the smaller start tag: weighted fair queueing of held time, by start
//     time (Goyal, Vin, Cheng 1996), which needs to know nothing in advance
//     about how long a turn will be. One that slept starts at the current
//     virtual time, without credit for the past. Each class has a virtual time
//     of its own on each GPU: what others have by their class or guarantee does
//     not blur the weights;
//  5. who came first.
//
// A higher class that waits, or one that is behind its guarantee, ends a turn
// early, after the minimum turn; so does one that computes in brief bursts and
// is next (brief.go); but not the turn of one that was granted by its age or
// guarantee.

func (e *Engine) aged(now time.Duration, t *gang) bool {
	return now-t.pending >= e.cfg.Ageing
}

// owed is how much of its guarantee t is behind, as time that it would take to
// fall behind so far; 0 if it is not.
func (t *gang) owed(now time.Duration) time.Duration {
	if t.minimum.rate == 0 {
		return 0
	}
	t.minimum.flow(now)
	if t.minimum.level <= 0 {
		return 0
	}
	return t.minimum.level * ppm / time.Duration(t.minimum.rate)
}

// capped says whether its cap keeps t from a turn now, and until when.
func (e *Engine) capped(now time.Duration, t *gang) (until time.Duration, yes bool) {
	if t.maximum.rate == 0 || t.maximum.rate >= ppm {
		return 0, false
	}
	t.maximum.flow(now)
	// Not for every crumb: a turn that is worth the switch.
	if wait := t.maximum.until(min(t.maximum.cap, t.quantum)); wait > 0 {
		return now + wait, true
	}
	return 0, false
}

// before says whether a goes before b. Both wait.
func (e *Engine) before(now time.Duration, a, b *gang) bool {
	if x, y := e.aged(now, a), e.aged(now, b); x || y {
		if x && y {
			return a.arrival < b.arrival
		}
		return x
	}
	if x, y := a.owed(now), b.owed(now); x != y {
		return x > y
	}
	if a.class != b.class {
		return a.class > b.class
	}
	if a.start != b.start {
		return a.start < b.start
	}
	return a.arrival < b.arrival
}

// next is who gets g, were it free: the first in line that does not also wait
// for other GPUs where somebody else is first. nil: nobody.
func (e *Engine) next(now time.Duration, g *gpu) *gang {
	if g.down != "" {
		return nil
	}
	if g.waiting.alike() {
		return g.waiting.first(now - e.cfg.Ageing)
	}
	var best *gang
	for _, t := range g.waiting.all {
		if best != nil && !e.before(now, t, best) {
			continue
		}
		if e.eligible(now, t) && (len(t.gpus) == 1 || e.leads(now, t)) {
			best = t
		}
	}
	return best
}

// eligible says whether t may be granted now if its GPUs are free. One that has
// no need of free GPUs is none of those that wait for them.
func (e *Engine) eligible(now time.Duration, t *gang) bool {
	if t.native || !up(t.gpus) {
		return false
	}
	_, capped := e.capped(now, t)
	return !capped
}

// leads says whether t, which waits for several GPUs, is first on all of them, of
// those that no other GPU keeps waiting.
func (e *Engine) leads(now time.Duration, t *gang) bool {
	if t.looked == e.looks {
		return t.first
	}
	t.looked, t.first = e.looks, false
	for _, g := range t.gpus {
		for _, other := range g.waiting.all {
			if other != t && e.before(now, other, t) && e.eligible(now, other) &&
				(len(other.gpus) == 1 || e.leads(now, other)) {
				return false
			}
		}
	}
	t.first = true
	return true
}

// contended says whether somebody of a class waits for g who may have it.
func (e *Engine) contended(now time.Duration, g *gpu, class request.Priority) bool {
	if g.waiting.alike() && g.down == "" {
		return g.waiting.classes[class-request.Low] > 0
	}
	for _, t := range g.waiting.all {
		if t.class == class && e.eligible(now, t) {
			return true
		}
	}
	return false
}

// smallest is the smallest start tag of t, which gets g, and those of its class
// that wait there. It is not t's own if t was granted by its age or guarantee:
// were the virtual time to follow it, the others would lose what they are owed.
// It follows one that waits for several GPUs, whose tag is of another's time.
func (e *Engine) smallest(now time.Duration, g *gpu, t *gang) time.Duration {
	at := t.start
	if len(t.gpus) > 1 || !t.guarded && g.waiting.alike() {
		return at
	}
	for _, w := range g.waiting.all {
		if w.class == t.lane && w.start < at && (g.waiting.alike() || e.eligible(now, w)) {
			at = w.start
		}
	}
	return at
}

// vtime is held time as it counts for t against others.
func (t *gang) vtime(held time.Duration) time.Duration {
	return held * request.DefaultWeight / time.Duration(t.weight)
}
