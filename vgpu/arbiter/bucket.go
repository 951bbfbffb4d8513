// SPDX-License-Identifier: Apache-2.0

package arbiter

import "time"

// ppm is one whole share.
const ppm = 1_000_000

// maxDebt bounds how far a bucket can be in debt. With a window of an hour, the
// longest that can be configured, its products stay below 2^63.
const maxDebt = time.Hour

// bucket holds time that flows in at a steady rate and is taken out as it is
// used. Whole numbers only, so that every machine computes the same.
type bucket struct {
	rate       int64         // of the time that passes, in ppm; 0: not in use
	floor, cap time.Duration // bounds of level
	level      time.Duration // at the time at
	rest       time.Duration // below one nanosecond of it, in ppm: many small steps add up to a large one
	at         time.Duration
}

// set starts the bucket anew, full.
func (b *bucket) set(now time.Duration, part int64, floor, window time.Duration) {
	*b = bucket{rate: part, floor: floor, at: now}
	b.cap = window * time.Duration(b.rate) / ppm
	b.level = b.cap
}

// flow brings level up to now.
func (b *bucket) flow(now time.Duration) {
	if now <= b.at {
		return
	}
	// The comparison first: the product could overflow for a long sleeper.
	if passed := now - b.at; passed >= b.until(b.cap) {
		b.level, b.rest = b.cap, 0
	} else {
		b.pour(passed * time.Duration(b.rate))
	}
	b.at = now
}

// pour lets so many millionths of a nanosecond in.
func (b *bucket) pour(in time.Duration) {
	in += b.rest
	b.level, b.rest = b.level+in/ppm, in%ppm
}

// until is how long from at the level takes to reach want.
func (b *bucket) until(want time.Duration) time.Duration {
	if b.level >= want || b.rate == 0 {
		return 0
	}
	return ((want-b.level)*ppm - b.rest + time.Duration(b.rate) - 1) / time.Duration(b.rate)
}

// take takes out what was used from then until now, while more flowed in.
func (b *bucket) take(from, now, used time.Duration) {
	if b.rate == 0 {
		return
	}
	b.flow(from)
	passed := max(now-b.at, 0)
	// In two steps: what flows in during a long turn is not more than what the
	// turn took out, but the product could overflow.
	b.level += passed/ppm*time.Duration(b.rate) - used
	b.pour(passed % ppm * time.Duration(b.rate))
	if b.level < b.floor || b.level >= b.cap {
		b.level, b.rest = min(max(b.level, b.floor), b.cap), 0
	}
	b.at = max(b.at, now)
}
