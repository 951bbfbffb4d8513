// SPDX-License-Identifier: Apache-2.0

package node

import "time"

// lateWindow is over how long "of late" is, about.
const lateWindow = time.Second

// sample is what a vGPU had held at a time.
type sample struct{ at, held time.Duration }

// ofLate is what is kept to say how much of the last second a vGPU held. No timer
// is needed: samples are taken when a turn begins or ends, and when it is asked.
type ofLate struct {
	samples [2]sample     // the older first, at least half a window apart
	ended   time.Duration // when the last of its turns that ended did
}

// heldSoFar is all that v has held until now.
func (l *loop) heldSoFar(v *vgpu, now time.Duration) time.Duration {
	s, _ := l.engine.VGPU(v.key)
	return s.Usage.Held + v.heldNow(now)
}

// sampleHeld takes a sample of v, unless the last one is young.
func (l *loop) sampleHeld(v *vgpu, now time.Duration) {
	k := &v.late
	if k.samples[1].at == 0 || now-k.samples[1].at >= lateWindow/2 {
		k.samples[0], k.samples[1] = k.samples[1], sample{now, l.heldSoFar(v, now)}
	}
}

// heldOfLate is which part of the second before now v held its GPUs, in millionths. Where
// the samples are older, because one turn went on all the time, it is taken as
// evenly spread from then until its last work.
func (l *loop) heldOfLate(v *vgpu, now time.Duration) uint64 {
	held := l.heldSoFar(v, now)
	from := v.late.samples[1]
	if now-from.at < lateWindow/2 && v.late.samples[0].at != 0 {
		from = v.late.samples[0]
	}
	l.sampleHeld(v, now)
	if from.at == 0 || now <= from.at {
		return 0
	}
	sum, over := max(held-from.held, 0), now-from.at
	if over > lateWindow {
		last := v.late.ended
		if v.phase != free {
			last, _ = v.work(now, true)
		}
		recent := min(last-(now-lateWindow), lateWindow)
		if recent <= 0 || last <= from.at {
			return 0
		}
		sum, over = time.Duration(float64(sum)*float64(recent)/float64(last-from.at)), lateWindow
	}
	return uint64(min(sum, over)) * 1_000_000 / uint64(over)
}
