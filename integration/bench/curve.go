// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// The growth of vgpud's costs is measured with so many vGPUs, on so many GPUs.
var (
	crowds    = []int{2, 16, 64, 256, 1024}
	gpuCounts = []int{1, 8}
)

// curve measures how vgpud's costs grow with its vGPUs, on one GPU and on eight.
func (b *bench) curve(ctx context.Context) error {
	if b.size.curve == 0 {
		return nil
	}
	for _, gpus := range gpuCounts {
		more := make(map[string]float64)
		var few, many point
		for _, vgpus := range crowds {
			if vgpus <= gpus {
				continue // nobody waits
			}
			p, err := b.point(ctx, gpus, vgpus)
			if err != nil {
				return fmt.Errorf("%d vGPUs on %d GPUs: %w", vgpus, gpus, err)
			}
			if few.turns == 0 {
				few = p
			}
			many = p
			for name, value := range map[string]float64{
				"handover_median_us": p.median.Seconds() * 1e6, "handover_p99_us": p.p99.Seconds() * 1e6,
				"memory_mib": p.memory, "idle_cpu": p.idle, "busy_cpu": p.busy, "cpu_us_per_turn": p.perTurn(),
			} {
				more[fmt.Sprintf("%d_%s", vgpus, name)] = value
			}
		}
		last := crowds[len(crowds)-1]
		b.row(row{
			name: fmt.Sprintf("growth_%d_gpus", gpus), value: ratio(many.median, few.median), unit: "of the fewest", samples: int(many.turns),
			note: fmt.Sprintf("hand-over by vgpud's account with %d vGPUs: %v (99 %%: %v) over %v (%v); memory %.0f MiB over %.0f; idle %.5f of a core over %.5f; %.0f us of CPU a turn over %.0f",
				last, many.median, many.p99, few.median, few.p99, many.memory, few.memory, many.idle, few.idle, many.perTurn(), few.perTurn()),
			more: more,
		})
	}
	return nil
}

// point is what one number of vGPUs came to.
type point struct {
	median, p99 time.Duration // of hand-overs, from the last completion to the grant
	turns       uint64
	cpu         time.Duration // of vgpud in these turns
	idle, busy  float64       // part of a core that vgpud used
	memory      float64       // MiB resident
}

// perTurn is vgpud's CPU time for a turn, in microseconds.
func (p point) perTurn() float64 { return p.cpu.Seconds() * 1e6 / float64(max(p.turns, 1)) }

// point lets as many clients as there are vGPUs take turns: all of them wait
// whenever a burst ends.
func (b *bench) point(ctx context.Context, gpus, vgpus int) (p point, err error) {
	n, err := b.startUnpinned(ctx, harness.DaemonOptions{GPUs: fmt.Sprintf("sim:%d", gpus)}, plain(vgpus))
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, n.stop()) }()
	if err := pin(n.pid(), b.cpus.vgpud); err != nil {
		return p, err
	}
	c, err := b.play(ctx, "turns", 0, n.dirs, gap)
	if err != nil {
		return p, err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	time.Sleep(b.size.curve / 4) // what came of their start is over
	_, idle, began, err := n.progress(ctx)
	if err != nil {
		return p, err
	}
	time.Sleep(b.size.curve)
	_, idleAfter, ended, err := n.progress(ctx)
	if err != nil {
		return p, err
	}
	p.idle = ratio(idleAfter-idle, ended.Sub(began))
	if _, err := c.ask("go"); err != nil {
		return p, err
	}
	time.Sleep(b.size.curve / 4)
	turns, used, began, err := n.progress(ctx)
	if err != nil {
		return p, err
	}
	time.Sleep(b.size.curve)
	turnsAfter, usedAfter, ended, err := n.progress(ctx)
	if err != nil {
		return p, err
	}
	p.turns, p.cpu = turnsAfter-turns, usedAfter-used
	p.busy = ratio(p.cpu, ended.Sub(began))
	bytes, err := memory(n.pid(), "VmRSS")
	if err != nil {
		return p, err
	}
	p.memory = float64(bytes) / (1 << 20)
	all, err := n.daemon.PhysicalGPUs(ctx)
	if err != nil {
		return p, err
	}
	handover := all[0].GetHandover()
	p.median, p.p99 = handover.GetMedian().AsDuration(), handover.GetP99().AsDuration()
	if p.turns == 0 || p.median == 0 {
		return p, errors.New("nobody had a turn after another")
	}
	return p, nil
}
