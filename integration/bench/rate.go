// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"time"
)

// rushing clients have work that is over at once.
const rushing = 64

// rush lets so many clients take turns as fast as they can, and calls look meanwhile.
func (b *bench) rush(ctx context.Context, look func(*node) error) (err error) {
	n, err := b.startNode(ctx, plain(rushing))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.stop()) }()
	c, err := b.play(ctx, "empty", 0, n.dirs, rushing*15*time.Microsecond)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	if _, err := c.ask("go"); err != nil {
		return err
	}
	time.Sleep(b.size.rate / 10) // not the start
	return look(n)
}

// rate measures how many hand-overs one core's vgpud does in a second, with
// clients whose work is over at once. The time that others took from vgpud on its
// core is left out: it counts what vgpud was given.
func (b *bench) rate(ctx context.Context) error {
	var done uint64
	var cpu, wall time.Duration
	if err := b.rush(ctx, func(n *node) error {
		turns, used, began, err := n.progress(ctx)
		if err != nil {
			return err
		}
		time.Sleep(b.size.rate)
		turnsAfter, usedAfter, ended, err := n.progress(ctx)
		done, cpu, wall = turnsAfter-turns, usedAfter-used, ended.Sub(began)
		return err
	}); err != nil {
		return err
	}
	b.row(row{
		name: "handovers_per_second", value: float64(done) / cpu.Seconds(), unit: "/s of vgpud's CPU", budget: 10000, rule: least, samples: int(done),
		note: fmt.Sprintf("%.1f us of CPU each; %.0f/s by the clock, on %.2f of a core; %d vGPUs, %d CPUs",
			float64(cpu.Nanoseconds())/1e3/float64(max(done, 1)), float64(done)/wall.Seconds(), ratio(cpu, wall), rushing, runtime.NumCPU()),
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
