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
//     virtual time, without credit for the past;
//  5. who came first.
//
// A higher class that waits, or one that is behind its guarantee, ends a turn
// early, after the minimum turn; but not the turn of one that was granted by
// its age or guarantee.

func (e *Engine) aged(now time.Duration, v *vgpu) bool {
	return now-v.pending >= e.cfg.Ageing
}

// owed is how much of its guarantee v is behind, as time that it would take to
// fall behind so far; 0 if it is not.
func (v *vgpu) owed(now time.Duration) time.Duration {
	if v.minimum.rate == 0 {
		return 0
	}
	v.minimum.flow(now)
	if v.minimum.level <= 0 {
		return 0
	}
	return v.minimum.level * ppm / time.Duration(v.minimum.rate)
}

// capped says whether its cap keeps v from a turn now, and until when.
func (e *Engine) capped(now time.Duration, v *vgpu) (until time.Duration, yes bool) {
	if v.maximum.rate == 0 || v.maximum.rate >= ppm {
		return 0, false
	}
	v.maximum.flow(now)
	// Not for every crumb: a turn that is worth the switch.
	if wait := v.maximum.until(e.worth(v)); wait > 0 {
		return now + wait, true
	}
	return 0, false
}

func (e *Engine) worth(v *vgpu) time.Duration {
	return min(v.maximum.cap, e.quantum(v))
}

// before says whether a goes before b. Both wait.
func (e *Engine) before(now time.Duration, a, b *vgpu) bool {
	if x, y := e.aged(now, a), e.aged(now, b); x || y {
		if x && y {
			return a.arrival < b.arrival
		}
		return x
	}
	if x, y := a.owed(now), b.owed(now); x != y {
		return x > y
	}
	if a.req.Priority != b.req.Priority {
		return a.req.Priority > b.req.Priority
	}
	if a.start != b.start {
		return a.start < b.start
	}
	return a.arrival < b.arrival
}

// next is who gets g, were it free: the first in line that does not also wait
// for other GPUs where somebody else is first. nil: nobody.
func (e *Engine) next(now time.Duration, g *gpu) *vgpu {
	if g.down != "" {
		return nil
	}
	var best *vgpu
	for _, v := range g.waiting.all {
		if best != nil && !e.before(now, v, best) {
			continue
		}
		if g.waiting.alike() || e.eligible(now, v) && (len(v.gpus) == 1 || e.leads(now, v)) {
			best = v
		}
	}
	return best
}

// eligible says whether v may be granted now if its GPUs are free.
func (e *Engine) eligible(now time.Duration, v *vgpu) bool {
	for _, g := range v.gpus {
		if g.down != "" {
			return false
		}
	}
	_, capped := e.capped(now, v)
	return !capped
}

// leads says whether v, which waits for several GPUs, is first on all of them.
func (e *Engine) leads(now time.Duration, v *vgpu) bool {
	for _, g := range v.gpus {
		for _, other := range g.waiting.all {
			if other != v && e.before(now, other, v) && e.eligible(now, other) {
				return false
			}
		}
	}
	return true
}

// vtime is held time as it counts for v against others.
func (v *vgpu) vtime(held time.Duration) time.Duration {
	w := v.req.Weight
	if w <= 0 {
		w = request.DefaultWeight
	}
	return held * request.DefaultWeight / time.Duration(w)
}
