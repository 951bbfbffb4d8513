// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// What a burst of a high class may wait for besides vgpud and its own work.
const (
	drainBudget = 2 * time.Millisecond   // of what others have in flight (engine.drain_budget)
	switches    = 100 * time.Microsecond // what the simulated GPU takes for another process (simgpu create --switch-us)
)

// answers is inference of a high class: bursts of 40 kernels of 20 us.
var answers = job{name: "answers", args: "--launches 40 --gpu-us 800 --rest-us 15000", bursts: 200}

// high measures bursts of a high class beside a hog, over those of the same
// program alone on the GPU, without vgpu.
func (b *bench) high(ctx context.Context) error {
	var solo, beside, hardware rounds
	for range b.size.highRounds {
		for _, r := range []struct {
			to   *rounds
			mode string
			hog  bool
		}{{&solo, byHardware, false}, {&beside, byVGPU, true}, {&hardware, byHardware, true}} {
			samples, err := b.answered(ctx, r.mode, r.hog)
			if err != nil {
				return err
			}
			r.to.add(samples)
		}
	}
	over, err := b.oneHandover(ctx)
	if err != nil {
		return err
	}
	allowed := solo.p99 + drainBudget + over + switches
	b.row(row{
		name: "high_p99", value: ratio(beside.p99, allowed), unit: "of what it may take", budget: 1, rule: most, samples: beside.samples,
		note: fmt.Sprintf("%v over %v: solo %v, drain budget %v, hand-over %v, the GPU's own switch %v; medians %v, solo %v; hardware slicing %v",
			beside.p99, allowed, solo.p99, drainBudget, over, switches, beside.median, solo.median, hardware.p99),
		more: map[string]float64{
			"solo_ms": solo.p99.Seconds() * 1000, "vgpu_ms": beside.p99.Seconds() * 1000, "hardware_ms": hardware.p99.Seconds() * 1000,
			"allowed_ms": allowed.Seconds() * 1000,
		},
	})
	return nil
}

// oneHandover is the 99th percentile of a hand-over as the group handover measures it.
func (b *bench) oneHandover(ctx context.Context) (_ time.Duration, err error) {
	n, err := b.startNode(ctx, plain(2))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, n.stop()) }()
	var all rounds
	for range 3 {
		samples, err := b.handovers(ctx, n)
		if err != nil {
			return 0, err
		}
		all.add(samples)
	}
	return all.p99, nil
}

// answered is how long each burst took but the first.
func (b *bench) answered(ctx context.Context, mode string, besideHog bool) (_ []time.Duration, err error) {
	var s sharing
	if mode == byVGPU {
		s, err = b.startArbited(ctx, harness.DaemonOptions{}, []map[string]string{{"vgpu-shim.dev/priority": "high"}, nil})
	} else {
		s, err = b.startBare(ctx, "")
	}
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, s.stop()) }()
	if besideHog {
		end, err := b.startHog(ctx, s, 1)
		if err != nil {
			return nil, err
		}
		defer end()
	}
	o, err := b.together(ctx, s, []job{answers})
	if err != nil {
		return nil, err
	}
	// Not the first one: the hog had filled its queue before the other was there,
	// as deep as it may while nobody of a higher class is on its GPU.
	return o.bursts[answers.name][1:], nil
}

// startHog starts one whose queue is always full of kernels of half a millisecond,
// waits until it runs, and returns what ends it.
func (b *bench) startHog(ctx context.Context, s sharing, i int) (end func(), err error) {
	cmd, err := s.command(ctx, i, filepath.Join(b.paths.Workload, "hog"), "--kernels", b.paths.Kernels, "--ms", "0", "--depth", "0", "--kernel-us", "500")
	if err != nil {
		return nil, err
	}
	return startAndAwait(cmd, "running")
}

// startAndAwait starts a program and waits for its first line.
func startAndAwait(cmd *exec.Cmd, line string) (end func(), err error) {
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("failed to start a program: %w", err)
	}
	end = func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}
	buf := make([]byte, len(line))
	for n := 0; n < len(buf); {
		m, err := out.Read(buf[n:])
		if err != nil {
			end()
			return nil, fmt.Errorf("a program did not say %q: %w", line, err)
		}
		n += m
	}
	return end, nil
}
