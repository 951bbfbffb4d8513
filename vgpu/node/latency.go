// SPDX-License-Identifier: Apache-2.0

package node

import (
	"math/bits"
	"time"
)

// latency is a histogram of durations: eight buckets for each doubling, so a
// quantile is at most an eighth too high. 4 KiB, no allocation, no lock.
type latency struct {
	count   uint64
	max     time.Duration
	buckets [8 * 62]uint64
}

func (h *latency) add(d time.Duration) {
	d = max(d, 0)
	h.count++
	h.max = max(h.max, d)
	h.buckets[bucket(uint64(d))]++
}

// bucket: 0 to 7 for themselves, then eight for each power of two.
func bucket(ns uint64) int {
	if ns < 8 {
		return int(ns)
	}
	shift := bits.Len64(ns) - 4
	return 8*(shift+1) + int(ns>>shift&7)
}

// top is the largest value of a bucket.
func top(i int) uint64 {
	if i < 8 {
		return uint64(i)
	}
	shift := i/8 - 1
	return (8+uint64(i%8)+1)<<shift - 1
}

// quantile is a value that at least the part q of all values does not exceed;
// 0 if there are none.
func (h *latency) quantile(q float64) time.Duration {
	rank := uint64(q*float64(h.count) + 0.999999)
	var seen uint64
	for i, n := range h.buckets {
		if seen += n; n > 0 && seen >= rank {
			return min(time.Duration(top(i)), h.max)
		}
	}
	return h.max
}
