// SPDX-License-Identifier: Apache-2.0

package arbiter

import "time"

// schedule grants what can be granted on the GPUs that were touched, and tells
// their holders whether somebody waits behind them.
func (e *Engine) schedule(now time.Duration) {
	// Who is first changes with time too. One that waits for several GPUs may
	// have been first on a GPU where nothing happened since; so they are looked
	// at together.
	for i := 0; i < len(e.touched); i++ {
		if g := e.touched[i]; g.waiting.several > 0 {
			for _, t := range g.waiting.all {
				if len(t.gpus) > 1 {
					e.touch(t)
				}
			}
		}
	}
	e.looks++
	for i := 0; i < len(e.touched); i++ { // grows: a grant touches other GPUs
		g := e.touched[i]
		g.touched = false
		if g.waiting.natives > 0 {
			e.grantNatives(now, g)
		}
		if g.holder == nil && g.beside == 0 {
			if t := e.next(now, g); t != nil && t.free() {
				e.grant(now, t)
			}
		}
		e.contend(now, g)
	}
	e.touched = e.touched[:0]
}

// grantNatives lets in those that need not wait for anybody.
func (e *Engine) grantNatives(now time.Duration, g *gpu) {
	for i := 0; i < len(g.waiting.all); {
		if t := g.waiting.all[i]; t.native && up(t.gpus) {
			e.grant(now, t) // takes it out, and moves others
			i = 0
		} else {
			i++
		}
	}
}

// free says whether nobody holds a GPU of t.
func (t *gang) free() bool {
	for _, g := range t.gpus {
		if g.holder != nil || g.beside > 0 {
			return false
		}
	}
	return true
}

// up says whether all of gpus take grants.
func up(gpus []*gpu) bool {
	for _, g := range gpus {
		if g.down != "" {
			return false
		}
	}
	return true
}

// contend sets when the holder of g must give way, and arms those that wait for
// no more than their cap.
func (e *Engine) contend(now time.Duration, g *gpu) {
	for i := 0; g.waiting.shares > 0 && i < len(g.waiting.all); i++ {
		t := g.waiting.all[i]
		if until, capped := e.capped(now, t); capped && t.members[0].armed != until {
			e.arm(t.members[0], until)
		}
	}
	t := g.holder
	if t == nil || t.state != Holding {
		return
	}
	wanted, urgent, end := e.wanted(now, t)
	lingers := wanted && !urgent
	if wanted != t.taking || lingers != t.lingers {
		t.taking, t.lingers = wanted, lingers
		for _, v := range t.members {
			switch {
			case !v.in:
			case wanted:
				e.take(v)
			default:
				e.do(Action{Kind: Keep, VGPU: v.id})
			}
		}
	}
	if v := t.members[0]; end != v.armed {
		e.arm(v, end)
	}
}

// wanted says whether somebody waits behind the holder t, whether it is somebody
// who should not wait for a linger, and when its turn must end, if it must.
func (e *Engine) wanted(now time.Duration, t *gang) (wanted, urgent bool, end time.Duration) {
	early := min(t.granted+t.swap+e.cfg.MinTurn, t.end) // it computes when its memory is back
	for _, g := range t.gpus {
		if g.waiting.alike() && g.down == "" {
			if len(g.waiting.all) == 0 {
				continue
			}
			at := t.end
			if g.waiting.higher(t.rank) {
				urgent = true
				if !t.guarded {
					at = early
				}
			} else if w := g.waiting.first(now - e.cfg.Ageing); w.class == t.rank && !t.guarded {
				at = e.sooner(t, w, early)
			}
			if !wanted || at < end {
				end = at
			}
			wanted = true
			continue
		}
		var next *gang
		if !t.guarded {
			next = e.next(now, g)
		}
		for _, w := range g.waiting.all {
			if !e.eligible(now, w) {
				continue
			}
			urgent = urgent || w.class > t.rank
			at := t.end
			if !t.guarded {
				switch {
				case w.class > t.rank:
					at = early
				case w.class == t.rank && w == next:
					at = e.sooner(t, w, early)
				}
				if w.minimum.rate > 0 { // when it will be behind its guarantee
					w.minimum.flow(now)
					at = min(at, max(early, now+w.minimum.until(1)))
				}
			}
			if !wanted || at < end {
				end = at
			}
			wanted = true
		}
	}
	if !wanted && t.behind() { // it waits behind itself
		wanted, end = true, t.end
	}
	if t.maximum.rate > 0 && t.maximum.rate < ppm {
		left := t.end // the grace of a drain that was resumed, even if its cap is used up
		if t.resumes == 0 {
			// What it may still use, while more flows in.
			t.maximum.flow(t.granted)
			left = t.granted + t.maximum.level*ppm/time.Duration(ppm-t.maximum.rate)
			left = max(left, now) // in debt since it was late; 0 would be no end at all
		}
		if end == 0 || left < end {
			end = left
		}
	}
	if end != 0 {
		end = max(end, now)
		if armed := t.members[0].armed; armed != 0 && armed <= now && end == now {
			end = armed // due already
		}
	}
	return wanted, urgent, end
}
