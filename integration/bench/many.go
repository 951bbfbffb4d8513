// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// many measures a vgpud with 512 vGPUs, each of which has a client that had a
// turn, and does nothing now.
func (b *bench) many(ctx context.Context) (err error) {
	const vgpus = 512
	n, err := b.startNode(ctx, plain(vgpus))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.stop()) }()
	c, err := b.play(ctx, "once", 0, n.dirs, 0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	if _, err := c.ask("go"); err != nil {
		return err
	}
	for turns := uint64(0); turns < vgpus-1; { // the last one keeps its turn
		if turns, err = n.turns(ctx); err != nil {
			return err
		}
		time.Sleep(10 * time.Millisecond) // between two looks
	}
	rss, err := memory(n.pid(), "VmRSS")
	if err != nil {
		return err
	}
	anon, err := memory(n.pid(), "RssAnon")
	if err != nil {
		return err
	}
	const mib = 1 << 20
	b.row(row{
		name: "daemon_memory_512", value: float64(rss) / mib, unit: "MiB", budget: 64, rule: most, samples: 1,
		note: fmt.Sprintf("VmRSS; RssAnon alone is %.1f MiB", float64(anon)/mib),
	})

	began := time.Now()
	used, err := cpuTime(n.pid())
	if err != nil {
		return err
	}
	time.Sleep(b.size.idle)
	after, err := cpuTime(n.pid())
	if err != nil {
		return err
	}
	wall := time.Since(began)
	b.row(row{
		name: "idle_cpu", value: ratio(after-used, wall), unit: "of a core", budget: .001, rule: most, samples: 1,
		note: fmt.Sprintf("%v in %v, with %d clients", after-used, wall.Round(time.Millisecond), vgpus),
	})
	return nil
}
