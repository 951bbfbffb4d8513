// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strconv"
	"time"
)

// handOver measures how long the GPU stands still when it goes from one to another:
// in vGPUs, and without them, where the hardware slices (the fourth open point).
func (h *hardware) handOver(ctx context.Context) error {
	long := strconv.FormatInt(h.size.together.Milliseconds(), 10)
	full := h.bursts("--for-ms", long, "--launches", "200", "--us", "20", "--capacity", "100000")
	jobs, err := h.together(ctx, h.size.program, everywhere(h.driver, [][]string{full, full}))
	if err != nil {
		return err
	}
	runs := runsOf(allSpans(jobs))
	gaps := switches(runs)
	var slices []time.Duration
	for _, r := range runs {
		slices = append(slices, time.Duration(r.to-r.from))
	}
	h.measure("native_slice_median", quantile(slices, .5).Seconds()*1e6, "us", len(slices))
	h.measure("native_slice_p90", quantile(slices, .9).Seconds()*1e6, "us", len(slices))
	h.measure("native_switch_median", quantile(gaps, .5).Seconds()*1e6, "us", len(gaps))
	h.measure("native_switch_p90", quantile(gaps, .9).Seconds()*1e6, "us", len(gaps))

	node, err := h.startNode(ctx, "info", nil, nil)
	if err != nil {
		return err
	}
	defer func() { h.stopped(node) }()
	// Each waits for the other as long as it works; it comes back in between.
	short := h.bursts("--for-ms", long, "--launches", "1", "--us", "1000", "--gap-us", "200", "--capacity", "10000")
	if jobs, err = h.together(ctx, h.size.program, apart(node, [][]string{short, short})); err != nil {
		return err
	}
	gaps = switches(runsOf(allSpans(jobs)))
	h.check("the GPU is handed over", len(gaps) > 10, "%d times", len(gaps))
	h.measure("handover_median", quantile(gaps, .5).Seconds()*1e6, "us", len(gaps))
	h.measure("handover_p90", quantile(gaps, .9).Seconds()*1e6, "us", len(gaps))
	// Full queues: a turn is taken away, and the rest of its work drains first.
	if jobs, err = h.together(ctx, h.size.program, apart(node, [][]string{full, full})); err != nil {
		return err
	}
	gaps = switches(runsOf(allSpans(jobs)))
	h.measure("handover_full_queues_median", quantile(gaps, .5).Seconds()*1e6, "us", len(gaps))
	return nil
}
