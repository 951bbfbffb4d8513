// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"time"

	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// A burst is what a vGPU computes from one rest to the next; a rest is a gap that is as
// long as the bursts beside it, or longer. Whoever computes in brief bursts waits for long
// for little while somebody has the GPU for a whole quantum, and what its CPU does in a
// rest begins that much later: often when nobody is left to use the GPU meanwhile. So a
// turn ends early for it, if it is next and of the same class:
//
//   - not before the minimum turn, nor before the holder has had as much as the other one
//     usually computes, patience times: those whose bursts are alike let each other finish;
//   - not before both have had the same, by their weights: shares are as they are without;
//   - not where a switch is dear (swap.go), nor for one that does not rest: it would
//     be back at once, and each time costs a switch.
const patience = 2

// habit is what a vGPU computes and how long it rests, of late.
type habit struct {
	burst time.Duration // so far; of one that was not over when its turn ended
	usual time.Duration // what a burst computes; 0: not known
	rest  time.Duration // from a burst to the next one; what exceeds two usual bursts does not count
}

// drift is a mean in which what comes last has a quarter.
func drift(mean, last time.Duration) time.Duration {
	if mean == 0 {
		return last
	}
	return mean + (last-mean)/4
}

// computed takes in a turn with held time and, in it, gaps which take idle together.
// over says whether its last burst is over, too.
func (h *habit) computed(held, idle time.Duration, gaps *Gaps, over bool) {
	var all, rests int64
	if gaps != nil {
		for _, n := range gaps {
			all += int64(n)
		}
		for i, n := range gaps {
			if int64(1)<<i >= int64(held)/(all+1) {
				rests += int64(n)
			}
		}
	}
	last := held / time.Duration(rests+1)
	if rests > 0 {
		h.burst = 0 // it ended in this turn
	}
	if h.burst += last; h.burst <= 0 {
		return
	}
	if !over {
		h.usual = max(h.usual, h.burst)
		return
	}
	h.usual, h.burst = drift(h.usual, h.burst), 0
	if all > 0 {
		h.rested(idle / time.Duration(all))
	}
}

// rested takes in a gap.
func (h *habit) rested(gap time.Duration) {
	if h.usual > 0 {
		h.rest = drift(h.rest, min(gap, 2*h.usual))
	}
}

// brief says whether its vGPU computes in bursts with rests between them.
func (h *habit) brief() bool { return h.usual > 0 && h.rest >= h.usual }

// sooner is when the turn of t ends for w, which is next and of the same class; early
// is when it may at the soonest.
func (t *gang) sooner(w *gang, early time.Duration) time.Duration {
	h := &w.members[0].habit
	if len(w.members) > 1 || !h.brief() || t.swap > 0 || w.swap > 0 {
		return t.end
	}
	ahead := (w.start - t.start) * time.Duration(t.weight) / request.DefaultWeight
	return min(t.end, max(early, t.granted+max(patience*h.usual, ahead)))
}
