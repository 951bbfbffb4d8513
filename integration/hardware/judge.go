// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// span is a piece of work on the GPU, by the GPU's own clock in nanoseconds.
type span struct {
	from, to uint64
	who      int
}

// calibration is an instant of the GPU's clock, the same one of CLOCK_MONOTONIC, and
// how far off that may be.
type calibration struct{ gpu, cpu, off int64 }

// job is what a program of bursts has printed.
type job struct {
	began, first, ended time.Duration // of CLOCK_MONOTONIC
	clock               []calibration
	spans               []span
	lost                uint64 // spans that did not fit into its log
}

// parseJob reads the lines of programs/bursts.c and torch/worker.py.
func parseJob(lines []string, who int) (j job, err error) {
	for _, line := range lines {
		name, rest, _ := strings.Cut(line, " ")
		switch name {
		case "began":
			_, err = fmt.Sscan(rest, &j.began)
		case "first":
			_, err = fmt.Sscan(rest, &j.first)
		case "ended":
			_, err = fmt.Sscan(rest, &j.ended)
		case "lost":
			_, err = fmt.Sscan(rest, &j.lost)
		case "clock":
			var c calibration
			_, err = fmt.Sscan(rest, &c.gpu, &c.cpu, &c.off)
			j.clock = append(j.clock, c)
		case "span":
			s := span{who: who}
			_, err = fmt.Sscan(rest, &s.from, &s.to)
			if err == nil && s.to < s.from {
				err = fmt.Errorf("it ends before it begins")
			}
			j.spans = append(j.spans, s)
		}
		if err != nil {
			return j, fmt.Errorf("the program says %q: %w", line, err)
		}
	}
	if len(j.clock) < 2 || j.ended == 0 {
		return j, fmt.Errorf("the program has not said all: %d lines", len(lines))
	}
	return j, nil
}

// allSpans are those of several jobs, in the order in which they began.
func allSpans(jobs []job) (all []span) {
	for _, j := range jobs {
		all = append(all, j.spans...)
	}
	slices.SortStableFunc(all, func(a, b span) int { return cmp.Compare(a.from, b.from) })
	return all
}

// overlap counts the spans that began while one of somebody else was not over, and
// the longest time that two shared so. The spans are in order.
func overlap(all []span) (n int, longest time.Duration) {
	last := map[int]uint64{} // of each, when all that began so far is over
	for _, s := range all {
		var shared uint64
		for who, to := range last {
			if who != s.who && to > s.from {
				shared = max(shared, min(to, s.to)-s.from, 1)
			}
		}
		if shared > 0 {
			n++
			longest = max(longest, time.Duration(shared))
		}
		last[s.who] = max(last[s.who], s.to)
	}
	return n, longest
}

// run is a number of spans, one after another, of the same one.
type run struct {
	who      int
	from, to uint64
	spans    int
}

func runsOf(all []span) (runs []run) {
	for _, s := range all {
		if n := len(runs) - 1; n >= 0 && runs[n].who == s.who {
			runs[n].to = max(runs[n].to, s.to)
			runs[n].spans++
			continue
		}
		runs = append(runs, run{s.who, s.from, s.to, 1})
	}
	return runs
}

// switches are the times from the last work of one to the first of another; those in
// which they overlap are left out.
func switches(runs []run) (gaps []time.Duration) {
	for i := 1; i < len(runs); i++ {
		if runs[i].from >= runs[i-1].to {
			gaps = append(gaps, time.Duration(runs[i].from-runs[i-1].to))
		}
	}
	return gaps
}

// onCPU is when that instant of the GPU's clock was, by CLOCK_MONOTONIC: on the line
// through a job's first and last calibration. off is how far off that may be.
func (j job) onCPU(gpu uint64) (at, off time.Duration) {
	a, b := j.clock[0], j.clock[len(j.clock)-1]
	at = time.Duration(int64(gpu) - a.gpu + a.cpu)
	if b.gpu > a.gpu {
		drift := float64((b.cpu-a.cpu)-(b.gpu-a.gpu)) / float64(b.gpu-a.gpu)
		at += time.Duration(drift * float64(int64(gpu)-a.gpu))
	}
	return at, time.Duration(max(a.off, b.off))
}

// outside counts the spans of a job that do not lie in a turn of its vGPU, and how
// far the worst one is from the next turn, beyond what the clocks may be off.
func outside(j job, turns []harness.Turn, vgpu string) (n int, worst time.Duration) {
	for _, s := range j.spans {
		from, off := j.onCPU(s.from)
		to, _ := j.onCPU(s.to)
		far := time.Hour // where there is no turn at all
		for _, t := range turns {
			if t.VGPU == vgpu {
				far = min(far, max(t.Granted-from, to-t.Ended, 0))
			}
		}
		if far = max(far-off, 0); far > 0 {
			n++
			worst = max(worst, far)
		}
	}
	return n, worst
}

// makespan is from the first begin to the last end.
func makespan(jobs []job) time.Duration {
	from, to := jobs[0].began, jobs[0].ended
	for _, j := range jobs[1:] {
		from, to = min(from, j.began), max(to, j.ended)
	}
	return to - from
}

// oneAfterAnother is what jobs take in all that ran alone.
func oneAfterAnother(jobs []job) (sum time.Duration) {
	for _, j := range jobs {
		sum += j.ended - j.began
	}
	return sum
}

// quantile of a sample, which is sorted by it; 0 if there is none.
func quantile(all []time.Duration, q float64) time.Duration {
	if len(all) == 0 {
		return 0
	}
	slices.Sort(all)
	return all[min(int(q*float64(len(all))), len(all)-1)]
}
