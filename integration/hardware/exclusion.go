// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"strconv"
	"time"
)

// hogs are programs that keep their queues full, each in another way.
func (h *hardware) hogs(n int) (lines [][]string) {
	ways := [][]string{
		{"--launches", "40", "--us", "500"},
		{"--launches", "400", "--us", "20"},
		{"--way", "graph", "--launches", "30", "--us", "500"},
		{"--launches", "4000", "--us", "0"},
	}
	for i := range n {
		args := append([]string{"--for-ms", strconv.FormatInt(h.size.together.Milliseconds(), 10), "--capacity", "60000"}, ways[i%len(ways)]...)
		lines = append(lines, h.bursts(args...))
	}
	return lines
}

// exclusion lets programs work at the same time, first without vgpu, where the
// check must see that they overlap, and then each in its vGPU.
func (h *hardware) exclusion(ctx context.Context) error {
	for _, n := range []int{2, 4} {
		lines := h.hogs(n)
		if n == 2 {
			lines[1] = lines[0] // short kernels hardly ever meet the end of a slice
		}
		jobs, err := h.together(ctx, h.size.program, everywhere(h.driver, lines))
		if err != nil {
			return err
		}
		all := allSpans(jobs)
		pairs, longest := overlap(all)
		h.check(fmt.Sprintf("the check sees an overlap of %d without vgpu", n), pairs > 0, "%d of %d pieces of work, for up to %v", pairs, len(all), longest)
		if err := h.excluded(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

func (h *hardware) excluded(ctx context.Context, n int) error {
	node, err := h.startNode(ctx, "trace", make([]map[string]string, n)...)
	if err != nil {
		return err
	}
	defer func() { h.stopped(node) }()
	jobs, err := h.together(ctx, h.size.program, apart(node, h.hogs(n)))
	if err != nil {
		return err
	}
	return h.judgeExclusion(ctx, fmt.Sprintf("%d programs", n), node, jobs, true)
}

// slack is how far the clocks of CPU and GPU may be apart beyond what the
// calibrations say. A turn is at least ten times as long.
const slack = time.Millisecond

// judgeExclusion looks at what jobs in vGPUs of their own have stamped. Where a piece
// of work is one submission (whole) no two may overlap; else it may be torn by the end
// of a turn, and what holds is that the stamps change hands no more often than the
// vGPUs do, and lie in turns.
func (h *hardware) judgeExclusion(ctx context.Context, who string, node *node, jobs []job, whole bool) error {
	turns, overruns, err := node.overruns(ctx)
	if err != nil {
		return err
	}
	all := allSpans(jobs)
	runs := runsOf(all)
	if whole {
		pairs, longest := overlap(all)
		h.check(who+" in vGPUs never overlap", len(all) > 0 && (pairs == 0 || overruns > 0), "%d of %d pieces of work, for up to %v; %d declared overruns", pairs, len(all), longest, overruns)
	}
	h.check(who+": work changes hands with the turns", len(runs) > 1 && (uint64(len(runs)) <= turns || overruns > 0), "%d times, in %d turns; %d declared overruns", len(runs), turns, overruns)
	if err := node.stop(); err != nil { // the last turns are in its log then
		h.check("vgpud ends when it is told to", false, "%v", err)
	}
	log, err := node.daemon.Turns()
	if err != nil {
		return err
	}
	n, far := 0, time.Duration(0)
	var worst time.Duration
	for i, j := range jobs {
		outsiders, off := outside(j, log, node.vgpus[i].id)
		n += outsiders
		far = max(far, off)
		for _, c := range j.clock {
			worst = max(worst, time.Duration(c.off))
		}
	}
	h.check(who+": each piece of work lies in a turn of its vGPU", far <= slack || overruns > 0,
		"%d of %d reach out of it, the worst by %v (clocks are compared to %v); %d turns in the log", n, len(all), far, worst, len(log))
	if overruns > 0 {
		h.finding(who+": overruns", "%d turns did not drain in time", overruns)
	}
	return nil
}
