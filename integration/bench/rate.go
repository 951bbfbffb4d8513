// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"
)

// rate measures how many hand-overs one core's vgpud does in a second, with
// clients whose work is over at once. The time that others took from vgpud on its
// core is left out: it counts what vgpud was given.
func (b *bench) rate(ctx context.Context) (err error) {
	const vgpus = 64
	n, err := b.startNode(ctx, plain(vgpus))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.stop()) }()
	c, err := b.play(ctx, "empty", 0, n.dirs, vgpus*15*time.Microsecond)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	if _, err := c.ask("go"); err != nil {
		return err
	}
	time.Sleep(b.size.rate / 10) // not the start
	turns, used, began, err := n.progress(ctx)
	if err != nil {
		return err
	}
	time.Sleep(b.size.rate)
	turnsAfter, usedAfter, ended, err := n.progress(ctx)
	if err != nil {
		return err
	}
	done, cpu, wall := turnsAfter-turns, usedAfter-used, ended.Sub(began)
	b.row(row{
		name: "handovers_per_second", value: float64(done) / cpu.Seconds(), unit: "/s of vgpud's CPU", budget: 10000, rule: least, samples: int(done),
		note: fmt.Sprintf("%.1f us of CPU each; %.0f/s by the clock, on %.2f of a core; %d vGPUs, %d CPUs",
			float64(cpu.Nanoseconds())/1e3/float64(max(done, 1)), float64(done)/wall.Seconds(), ratio(cpu, wall), vgpus, runtime.NumCPU()),
	})
	return nil
}

// progress is how far vgpud has come: turns, CPU time, and when that was.
func (n *node) progress(ctx context.Context) (turns uint64, cpu time.Duration, now time.Time, err error) {
	if turns, err = n.turns(ctx); err != nil {
		return 0, 0, now, err
	}
	cpu, err = cpuTime(n.pid())
	return turns, cpu, time.Now(), err
}
