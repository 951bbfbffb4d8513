// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"
	"time"
)

func TestTimeline(t *testing.T) {
	const ms = time.Millisecond
	samples := []sample{
		{0 * ms, []mark{holding, waiting}},
		{5 * ms, []mark{holding, waiting}},
		{10 * ms, []mark{nothing, holding}},
		{15 * ms, []mark{holding, waiting}},
		{20 * ms, []mark{nothing, nothing}},
	}
	got := timeline(2, samples, 0, 10*ms, 3)
	if got[0] != "█▒" || got[1] != "·▒" {
		t.Errorf("got %q", got)
	}
}

func TestSpanline(t *testing.T) {
	const ms = time.Millisecond
	spans := []span{{0, 10 * ms}, {15 * ms, 20 * ms}, {29 * ms, 31 * ms}}
	// Half of the second column; a tenth of the third and fourth still shows.
	if got := spanline(spans, 0, 10*ms, 5); got != "█▒░░" {
		t.Errorf("got %q", got)
	}
	if got := spanline(spans, 5*ms, 10*ms, 2); got != "▒▒" {
		t.Errorf("from the middle: got %q", got)
	}
}
