// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// otherLibrary of the environment names a library that shares GPUs, too, to be
// preloaded into the same programs.
const otherLibrary = "VGPU_BENCH_OTHER"

// How jobs share the GPU that is simulated.
const (
	byHardware = "hardware" // nobody stands between: it slices, and pays for each switch
	byVGPU     = "vgpu"
	byOther    = "other"
)

// modes are those that are compared in this run.
func modes() []string {
	all := []string{byHardware, byVGPU}
	if os.Getenv(otherLibrary) != "" {
		all = append(all, byOther)
	}
	return all
}

// run runs jobs together in a mode.
func (b *bench) runJobs(ctx context.Context, mode string, jobs []job) (o outcome, err error) {
	var s sharing
	switch mode {
	case byVGPU:
		s, err = b.startArbited(ctx, harness.DaemonOptions{}, plain(len(jobs)))
	case byOther:
		s, err = b.startBare(ctx, os.Getenv(otherLibrary))
	default:
		s, err = b.startBare(ctx, "")
	}
	if err != nil {
		return o, err
	}
	return b.toTheEnd(ctx, s, jobs)
}

// set is jobs that are run together, once in each mode and round.
type set struct {
	name string
	jobs []job
	went map[string]outcome // by mode: the round with the shortest makespan
}

// workloads runs jobs alone, and together in each mode.
func (b *bench) workloads(ctx context.Context) error {
	var alone, bursty, mixes []*set
	for _, j := range append(slices.Clone(profiles), half) {
		alone = append(alone, &set{name: j.name, jobs: []job{j}})
	}
	for _, k := range b.size.bursty {
		bursty = append(bursty, &set{name: fmt.Sprint("k", k), jobs: same(half, k)})
	}
	for _, k := range b.size.mixes {
		mixes = append(mixes, &set{name: fmt.Sprint("k", k), jobs: mixed(k)})
	}
	for round := range max(b.size.jobRounds, b.size.aloneRounds) {
		var sets []*set
		if round < b.size.aloneRounds {
			sets = append(sets, alone...)
		}
		if round < b.size.jobRounds {
			sets = slices.Concat(sets, bursty, mixes)
		}
		for _, s := range sets {
			for _, mode := range modes() {
				o, err := b.runJobs(ctx, mode, s.jobs)
				if err != nil {
					return fmt.Errorf("%d jobs (%s), %s: %w", len(s.jobs), s.name, mode, err)
				}
				if s.went == nil {
					s.went = make(map[string]outcome)
				}
				if before, ok := s.went[mode]; !ok || o.makespan < before.makespan {
					s.went[mode] = o
				}
			}
		}
	}
	b.row(judgeAlone(alone, b.size))
	for _, r := range slices.Concat(judgeBursty(bursty, alone, b.size), judgeMixes(mixes, alone, b.size)) {
		b.row(r)
	}
	return nil
}

// bound is what no sharing of one GPU can be better than: the larger one of all
// the time that jobs compute on it, and of the longest job alone.
func bound(jobs []job, alone []*set) (bound, serial time.Duration) {
	var computes time.Duration
	for _, j := range jobs {
		i := slices.IndexFunc(alone, func(s *set) bool { return s.name == j.name })
		o := alone[i].went[byHardware]
		computes += o.busy
		serial += o.makespan
		bound = max(bound, o.makespan)
	}
	return max(bound, computes), serial
}

// index is Jain's: 1 if all are the same.
func index(of []float64) float64 {
	var sum, squares float64
	for _, s := range of {
		sum, squares = sum+s, squares+s*s
	}
	return sum * sum / (float64(len(of)) * squares)
}

func judgeAlone(alone []*set, size size) row {
	worst, more, notes := math.Inf(1), make(map[string]float64), []string(nil)
	for _, s := range alone {
		r := ratio(s.went[byHardware].makespan, s.went[byVGPU].makespan)
		more[s.name] = r
		notes = append(notes, fmt.Sprintf("%s %.4f", s.name, r))
		worst = min(worst, r)
	}
	return row{
		name: "alone", value: worst, unit: "of without vgpu", budget: size.aloneBudget, rule: least, samples: size.aloneRounds,
		note: "speed of a job that nobody shares its GPU with, the slowest: " + strings.Join(notes, ", "), more: more,
	}
}

func judgeBursty(sets, alone []*set, size size) (rows []row) {
	worstOfHardware, note, fairest := 0.0, "", 1.0
	for _, s := range sets {
		best, serial := bound(s.jobs, alone)
		o := s.went[byVGPU]
		if r := ratio(o.makespan, s.went[byHardware].makespan); r > worstOfHardware {
			worstOfHardware, note = r, fmt.Sprintf("worst of %d sets: %d bursty jobs", len(sets), len(s.jobs))
		}
		speeds := make([]float64, 0, len(o.took))
		for _, t := range o.took {
			speeds = append(speeds, 1/t.Seconds())
		}
		fairest = min(fairest, index(speeds))
		rows = append(rows, row{
			name: "makespan_bound_" + s.name, value: ratio(o.makespan, best), unit: "of the lower bound", budget: 1.05, rule: most, samples: size.jobRounds,
			note: fmt.Sprintf("%d jobs of 10 ms on the GPU and 10 ms off it; %.2f of one after another, hardware slicing %.2f",
				len(s.jobs), ratio(o.makespan, serial), ratio(s.went[byHardware].makespan, serial)),
			more: s.numbers(best, serial),
		})
	}
	return append(
		rows,
		row{name: "makespan_hw", value: worstOfHardware, unit: "of hardware slicing", budget: 1.01, rule: most, samples: size.jobRounds, note: note},
		row{name: "jain_bursty", value: fairest, unit: "Jain's index", budget: .99, rule: least, samples: size.jobRounds, note: "of the speeds of those jobs; the worst set"},
	)
}

func judgeMixes(sets, alone []*set, size size) (rows []row) {
	for _, s := range sets {
		best, serial := bound(s.jobs, alone)
		o, hw := s.went[byVGPU], s.went[byHardware]
		var names []string
		for _, j := range s.jobs {
			names = append(names, j.name)
		}
		rows = append(rows, row{
			name: "mix_" + s.name, value: ratio(o.makespan, hw.makespan), unit: "of hardware slicing", budget: size.mixBudget, rule: most, samples: size.jobRounds,
			note: fmt.Sprintf("%s; %.2f of one after another, %.2f of the lower bound, the GPU computes %.0f %% of the time; hardware slicing %.2f, %.2f, %.0f %%",
				strings.Join(names, " "), ratio(o.makespan, serial), ratio(o.makespan, best), 100*ratio(o.busy, o.makespan),
				ratio(hw.makespan, serial), ratio(hw.makespan, best), 100*ratio(hw.busy, hw.makespan)),
			more: s.numbers(best, serial),
		})
	}
	return rows
}

// numbers is all that was measured of a set: times in milliseconds.
func (s *set) numbers(bound, serial time.Duration) map[string]float64 {
	ms := func(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
	n := map[string]float64{"jobs": float64(len(s.jobs)), "bound_ms": ms(bound), "serial_ms": ms(serial)}
	for mode, o := range s.went {
		n[mode+"_makespan_ms"] = ms(o.makespan)
		n[mode+"_utilisation"] = ratio(o.busy, o.makespan)
		for _, name := range slices.Sorted(maps.Keys(o.bursts)) {
			n[mode+"_"+name+"_p50_ms"] = ms(quantile(o.bursts[name], .5))
			n[mode+"_"+name+"_p99_ms"] = ms(quantile(o.bursts[name], .99))
		}
	}
	return n
}
