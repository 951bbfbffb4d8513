// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"time"
)

// quantile is a value that at least the part q of all samples does not exceed.
func quantile(samples []time.Duration, q float64) time.Duration {
	if len(samples) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(samples))
	return sorted[min(int(q*float64(len(sorted))), len(sorted)-1)]
}

// rounds are samples that were taken in several goes. On a machine that others
// use, too, the least disturbed one says most about the program: each number is
// the best of its kind.
type rounds struct {
	median, p99 time.Duration
	samples     int
}

func (r *rounds) add(samples []time.Duration) {
	median, p99 := quantile(samples, .5), quantile(samples, .99)
	if r.samples == 0 {
		r.median, r.p99 = median, p99
	}
	r.median, r.p99 = min(r.median, median), min(r.p99, p99)
	r.samples += len(samples)
}
