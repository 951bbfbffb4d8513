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
	"time"
)

// engine takes the step of a hand-over from the engine's own benchmark: on 8 GPUs,
// with 512 vGPUs and with one for each GPU.
func (b *bench) engine(ctx context.Context) error {
	lines, err := b.output(ctx, goCommand(), "test", "-run", "^$", "-bench", "HandOver/^(8|512)$", "-benchtime", "5000x",
		"-count", strconv.Itoa(b.size.engineRuns), "./vgpu/arbiter")
	if err != nil {
		return err
	}
	runs := make(map[string][]time.Duration) // picoseconds, by the number of vGPUs
	for _, line := range lines {
		f := strings.Fields(line)
		if len(f) < 4 || f[3] != "ns/op" {
			continue
		}
		_, name, _ := strings.Cut(f[0], "/")
		name, _, _ = strings.Cut(name, "-") // the number of CPUs
		ns, err := strconv.ParseFloat(f[2], 64)
		if err != nil {
			return fmt.Errorf("go test said %q: %w", line, err)
		}
		runs[name] = append(runs[name], time.Duration(ns*1000))
	}
	few, many := quantile(runs["8"], .5), quantile(runs["512"], .5)
	if few == 0 || many == 0 {
		return fmt.Errorf("go test said nothing about 8 and 512 vGPUs:\n%s", strings.Join(lines, "\n"))
	}
	samples := len(runs["512"])
	b.row(row{
		name: "engine_step_512_ns", value: float64(many) / 1000, unit: "ns", budget: 1000, rule: most, samples: samples,
		note: "median of runs of 5000 steps",
	})
	b.row(row{
		name: "engine_step_512", value: ratio(many, few), unit: "of 8 vGPUs", budget: 2, rule: most, samples: samples,
		note: fmt.Sprintf("%.0f ns over %.0f ns", float64(many)/1000, float64(few)/1000),
	})
	return nil
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
