// SPDX-License-Identifier: Apache-2.0

package arbiter

import "time"

// What does not fit on a GPU together is swapped: the memory of a vGPU that comes
// after others has to be brought back before it computes. A turn pays for that once,
// so the longer it is, the less it matters; the shorter, the sooner everybody has
// one. The quantum is as long as it must be for the swap to take no more than
// SwapShare of it, and LongestQuantum at most: for as long as it is dear, no longer.
//
// Two more things follow. A turn that is cut short for a higher class, after the
// minimum turn, has that from when its memory is back; otherwise it might never
// compute. And a GPU is kept for the next burst of a vGPU (linger.go) as if a switch
// cost the swap as well.

// swaps takes in how long it takes to bring the memory of v back.
func (e *Engine) swaps(now time.Duration, v *vgpu, swap time.Duration) {
	t := v.gang
	if v.swap = max(swap, 0); v.swap == t.swap && len(t.members) == 1 {
		return
	}
	before := t.quantum
	e.uncount(t)
	e.combined(now, t)
	t.requantum(before)
	for _, v := range t.members {
		v.history.known = false // how long it is best to linger hangs on it
		if v.in && t.taking {
			e.take(v)
		}
	}
	e.touch(t)
}

// raise makes the quantum of t, which its members ask for, as long as a swap wants it.
func (e *Engine) raise(t *gang) {
	t.swap = 0
	for _, v := range t.members {
		t.swap = max(t.swap, v.swap)
	}
	worth := min(float64(t.swap)/e.cfg.SwapShare, float64(e.cfg.LongestQuantum))
	t.quantum = max(t.quantum, time.Duration(worth))
}
