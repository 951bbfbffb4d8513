// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"fmt"
	"math/bits"
	"time"
)

// Linger says how long a GPU is kept for a vGPU that became idle while somebody
// else waits: LearnedLinger, NeverLinger, or always the same time.
type Linger time.Duration

// The lingers that are not a time.
const (
	LearnedLinger Linger = 0
	NeverLinger   Linger = -1
)

// String is how it is configured.
func (l Linger) String() string {
	switch {
	case l < 0:
		return "never"
	case l > 0:
		return time.Duration(l).String()
	}
	return "learned"
}

// ParseLinger reads what String writes.
func ParseLinger(s string) (Linger, error) {
	for _, l := range []Linger{LearnedLinger, NeverLinger} {
		if s == l.String() {
			return l, nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil || d <= 0 {
		return 0, fmt.Errorf("linger %q: must be learned, never or a duration above 0", s)
	}
	return Linger(d), nil
}

// Gaps counts idle gaps by length: bucket i those of 2^i to 2^(i+1) nanoseconds,
// the last one all that are longer.
type Gaps [32]uint32

// What a history is made of at most, and at least before it is believed.
const (
	mostGaps  = 256
	leastGaps = 8
)

// history is the newest idle gaps of a vGPU, between two bursts of work; older
// ones fade.
type history struct {
	gaps  Gaps
	total uint32
	best  time.Duration // what linger found
	known bool          // for these gaps
}

// add takes in one gap.
func (h *history) add(gap time.Duration) {
	h.gaps[min(bits.Len64(uint64(max(gap, 1)))-1, len(h.gaps)-1)]++
	h.added(1)
}

// learn takes in many.
func (h *history) learn(gaps *Gaps) {
	for i, n := range gaps {
		n = min(n, mostGaps)
		h.gaps[i] += n
		h.added(n)
	}
}

func (h *history) added(n uint32) {
	h.total += n
	h.known = h.known && n == 0
	for h.total > mostGaps {
		h.total = 0
		for i := range h.gaps {
			h.gaps[i] /= 2
			h.total += h.gaps[i]
		}
	}
}

// linger is how long to keep the GPU idle for the next burst: the time that would
// have cost the least GPU time over the gaps of the history. A gap that is over
// in that time costs its length; a longer one costs the time and then a switch,
// which is all that each costs without linger: one, since a turn more begins with
// one switch more, and whoever has the GPU meanwhile gives it up for its own gaps.
//
// swap is what a switch costs beside switchCost (swap.go). While too few gaps are
// known, a switch is put off for as long as that takes: whatever comes, it costs
// twice what it must at most.
func (h *history) linger(how Linger, switchCost, swap time.Duration) time.Duration {
	switch {
	case how < 0:
		return 0
	case how > 0:
		return time.Duration(how)
	case h.known:
		return h.best
	}
	h.known, h.best = true, 0
	if h.total < leastGaps {
		h.best = swap
		return swap
	}
	cost := int64(switchCost + swap)
	least := int64(h.total) * cost
	var short, kept int64 // how many gaps are shorter than the linger, and how long they are
	for i, n := range h.gaps[:len(h.gaps)-1] {
		length := int64(1) << (i + 1)
		if kept >= least {
			break // those so far cost more already
		}
		short += int64(n)
		kept += int64(n) * (length - length/4)
		if all := kept + (int64(h.total)-short)*(length+cost); all < least {
			least, h.best = all, time.Duration(length)
		}
	}
	return h.best
}
