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
//   - only for one that rests for no less than it computes, and than the minimum turn: else
//     it would be back at once, and each time costs a switch;
//   - not where a switch is dear (swap.go), nor where it is not one vGPU on one GPU that gives
//     way to another: the parts of a gang, and what several GPUs do for it, depend on each
//     other.
const patience = 2

// habit is what a vGPU computes and how long it rests, of late.
type habit struct {
	burst time.Duration // so far; of one that was not over when its turn ended
	usual time.Duration // what a burst computes; 0: not known
	rest  time.Duration // from a burst to the next one; not all of a long one counts
}

// drift is a mean in which what comes last has a quarter.
func drift(mean, last time.Duration) time.Duration {
	if mean == 0 {
		return last
	}
	return mean + (last-mean)/4
}

// worth is how long the vGPU rests at least if it does.
func (h *habit) worth(minTurn time.Duration) time.Duration { return max(h.usual, minTurn) }

// brief says whether it computes in bursts with rests between them.
func (h *habit) brief(minTurn time.Duration) bool {
	return h.usual > 0 && h.rest >= h.worth(minTurn)
}

// rested takes in a gap: no more of it than is worth two rests, so that most of them
// are what counts.
func (h *habit) rested(gap, minTurn time.Duration) {
	if h.usual > 0 {
		h.rest = drift(h.rest, min(gap, 2*h.worth(minTurn)))
	}
}

// computed takes in a turn with held time, and the gaps in it. over says whether its last
// burst is over, too: of a turn that was taken away nobody knows.
func (h *habit) computed(held time.Duration, gaps *Gaps, over bool, minTurn time.Duration) {
	var all, rests, rest int64
	if gaps != nil {
		for _, n := range gaps {
			all += int64(n)
		}
		for i, n := range gaps {
			if length := int64(1) << i; length >= int64(held)/(all+1) {
				rests += int64(n)
				rest += int64(n) * length
			}
		}
	}
	if rests > 0 {
		h.burst = 0 // it ended in this turn
	}
	if h.burst += held / time.Duration(rests+1); h.burst <= 0 {
		return
	}
	if !over {
		h.usual = max(h.usual, h.burst)
		return
	}
	h.usual, h.burst = drift(h.usual, h.burst), 0
	if rests > 0 {
		h.rested(time.Duration(rest/rests), minTurn)
	}
}

// single says whether t is one vGPU with one GPU.
func (t *gang) single() bool { return len(t.members) == 1 && len(t.gpus) == 1 }

// sooner is when the turn of t ends for w, which is next and of the same class; early
// is when it may at the soonest.
func (e *Engine) sooner(t, w *gang, early time.Duration) time.Duration {
	h := &w.members[0].habit
	if !t.single() || !w.single() || t.swap > 0 || w.swap > 0 || !h.brief(e.cfg.MinTurn) {
		return t.end
	}
	// In floating point: who overran for hours is ahead by so much that it overflows.
	ahead := min(float64(w.start-t.start)*float64(t.weight)/request.DefaultWeight, float64(t.quantum))
	return min(t.end, max(early, t.granted+max(patience*h.usual, time.Duration(ahead))))
}
