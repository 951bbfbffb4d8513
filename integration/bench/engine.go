// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
)

// engine takes the step of a hand-over from the engine's own benchmark: on 8 GPUs, with 512
// vGPUs and with one for each GPU, and how it grows with the vGPUs, as in curve.
func (b *bench) engine(ctx context.Context) error {
	lines, err := b.output(ctx, goCommand(), "test", "-run", "^$", "-bench", "HandOver", "-benchtime", "5000x",
		"-count", strconv.Itoa(b.size.engineRuns), "./vgpu/arbiter")
	if err != nil {
		return err
	}
	few, err := step(lines, 8, 8)
	if err != nil {
		return err
	}
	many, err := step(lines, 8, 512)
	if err != nil {
		return err
	}
	b.row(row{
		name: "engine_step_512_ns", value: many, unit: "ns", budget: 1000, rule: most, samples: b.size.engineRuns,
		note: "median of runs of 5000 steps",
	})
	b.row(row{
		name: "engine_step_512", value: many / few, unit: "of 8 vGPUs", budget: 2, rule: most, samples: b.size.engineRuns,
		note: fmt.Sprintf("%.0f ns over %.0f ns", many, few),
	})
	for _, gpus := range gpuCounts {
		more := make(map[string]float64)
		var steps []float64
		for _, vgpus := range crowds {
			if vgpus <= gpus {
				continue // nobody waits
			}
			ns, err := step(lines, gpus, vgpus)
			if err != nil {
				return err
			}
			steps = append(steps, ns)
			more[fmt.Sprintf("%d_step_ns", vgpus)] = ns
		}
		b.row(row{
			name: fmt.Sprintf("engine_growth_%d_gpus", gpus), value: steps[len(steps)-1] / steps[0], unit: "of the fewest", samples: b.size.engineRuns,
			note: fmt.Sprintf("%.0f ns, of %v vGPUs", steps, crowds[len(crowds)-len(steps):]), more: more,
		})
	}
	return nil
}

// step is what a hand-over takes among so many vGPUs, in nanoseconds: the median of the
// benchmark's runs.
func step(lines []string, gpus, vgpus int) (ns float64, err error) {
	name := fmt.Sprintf("BenchmarkHandOver/gpus=%d/vgpus=%d", gpus, vgpus)
	var own []string
	for _, line := range lines {
		if f := strings.Fields(line); len(f) > 0 {
			if said, _, _ := strings.Cut(f[0], "-"); said == name { // behind it the number of CPUs
				own = append(own, line)
			}
		}
	}
	runs, err := metrics(own, "ns/op")
	if err != nil {
		return 0, fmt.Errorf("%s: %w", name, err)
	}
	return median(runs), nil
}

// gate takes what a launch costs beyond the bare call, and a program that never
// makes one, from the driver library's own benchmarks.
func (b *bench) gate(ctx context.Context) error {
	if !b.size.gate {
		return nil // it builds a library first, which takes its time
	}
	lines, err := b.output(ctx, goCommand(), "test", "-run", "^$", "-bench", "Launch|Start", "-benchtime", "1x", "-count", "5", "./hooks/driver/test")
	if err != nil {
		return err
	}
	adds, err := metrics(lines, "explicit-adds")
	if err != nil {
		return err
	}
	legacy, err := metrics(lines, "legacy-adds")
	if err != nil {
		return err
	}
	perThread, err := metrics(lines, "per-thread-adds")
	if err != nil {
		return err
	}
	launch, err := metrics(lines, "launch-ratio")
	if err != nil {
		return err
	}
	start, err := metrics(lines, "start-us")
	if err != nil {
		return err
	}
	b.row(row{
		name: "gate_overhead", value: median(adds), unit: "locked adds", budget: 4, rule: most, samples: len(adds),
		note: fmt.Sprintf("goal 2; a launch on an explicit stream; median of runs %.2f", adds),
	})
	b.row(row{
		name: "gate_legacy", value: median(legacy), unit: "locked adds", samples: len(legacy),
		note: fmt.Sprintf("on the legacy stream; median of runs %.2f", legacy),
	})
	b.row(row{
		name: "gate_per_thread", value: median(perThread), unit: "locked adds", samples: len(perThread),
		note: fmt.Sprintf("on a per-thread stream; median of runs %.2f", perThread),
	})
	b.row(row{
		name: "gate_launch", value: median(launch), unit: "of the bare call", budget: 1.01, rule: most, samples: len(launch),
		note: fmt.Sprintf("a launch that takes 4 us; median of runs %.4f", launch),
	})
	b.row(row{
		name: "library_start", value: median(start), unit: "us", budget: 100, rule: most, samples: len(start),
		note: fmt.Sprintf("median of runs %.0f", start),
	})
	return nil
}

// metrics returns the numbers of a benchmark's own metric, rising.
func metrics(lines []string, unit string) ([]float64, error) {
	var ns []float64
	for _, line := range lines {
		f := strings.Fields(line)
		for i := 1; i < len(f); i++ {
			if f[i] != unit {
				continue
			}
			n, err := strconv.ParseFloat(f[i-1], 64)
			if err != nil {
				return nil, fmt.Errorf("go test said %q: %w", line, err)
			}
			ns = append(ns, n)
		}
	}
	if len(ns) == 0 {
		return nil, fmt.Errorf("go test said nothing in %s:\n%s", unit, strings.Join(lines, "\n"))
	}
	slices.Sort(ns)
	return ns, nil
}

// median of what is sorted.
func median(ns []float64) float64 { return ns[len(ns)/2] }

// goCommand is the one that built this.
func goCommand() string { return cmp.Or(os.Getenv("GO"), "go") }
