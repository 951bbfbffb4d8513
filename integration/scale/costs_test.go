// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
)

// Of a hundred, eighty took up to 1 s, all but one up to 2 s, and one longer than 4 s.
func TestQuantile(t *testing.T) {
	h := &dto.Histogram{}
	count, sum := uint64(100), 150.0
	h.SampleCount, h.SampleSum = &count, &sum
	for _, b := range []struct {
		bound float64
		below uint64
	}{{1, 80}, {2, 99}, {4, 99}} {
		h.Bucket = append(h.Bucket, &dto.Bucket{UpperBound: &b.bound, CumulativeCount: &b.below})
	}
	for q, want := range map[float64]time.Duration{0.4: time.Second / 2, 0.8: time.Second, 0.895: 3 * time.Second / 2, 0.99: 2 * time.Second, 0.999: 4 * time.Second} {
		if got := quantile(h, q); got != want {
			t.Errorf("the quantile %v is %v, want %v", q, got, want)
		}
	}
	if got := mean(h); got != 3*time.Second/2 {
		t.Errorf("the mean is %v", got)
	}
}
