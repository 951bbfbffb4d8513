// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"time"
)

// kernels are as long as this. Each client keeps its queue full of its own kind.
var kernels = []time.Duration{3 * time.Millisecond, time.Millisecond, 11 * time.Millisecond, 2 * time.Millisecond}

// share measures who gets how much, by the clients' own account: the time for
// which each had work on the GPU, in windows that begin one second after the
// other. The worst window counts.
func (b *bench) share(ctx context.Context) error {
	weights := []float64{1, 2, 4, 8}
	worst := 0.0
	note, err := b.windows(ctx, weights, func(shares []float64) {
		for i, w := range weights {
			worst = max(worst, math.Abs(shares[i]-w/15))
		}
	})
	if err != nil {
		return err
	}
	b.row(row{
		name: "share_error", value: worst, unit: "of the GPU", budget: b.size.shareBudget, rule: most, samples: b.size.windows,
		note: "weights 1:2:4:8; " + note,
	})

	jain := 1.0
	note, err = b.windows(ctx, []float64{1, 1, 1, 1}, func(shares []float64) {
		jain = min(jain, index(shares))
	})
	if err != nil {
		return err
	}
	b.row(row{
		name: "jain", value: jain, unit: "Jain's index", budget: .99, rule: least, samples: b.size.windows,
		note: "equal weights; " + note,
	})
	return nil
}

// windows lets clients with these weights run and calls each with every window's
// shares.
func (b *bench) windows(ctx context.Context, weights []float64, each func([]float64)) (note string, err error) {
	vgpus := make([]map[string]string, len(weights))
	for i, w := range weights {
		vgpus[i] = map[string]string{"vgpu-shim.dev/weight": strconv.Itoa(int(100 * w))}
	}
	n, err := b.startNode(ctx, vgpus)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, n.stop()) }()
	c, err := b.play(ctx, "full", 0, n.dirs, kernels...)
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, c.stop()) }()
	if _, err := c.ask("go"); err != nil {
		return "", err
	}
	const step = time.Second
	long := int(b.size.window / step)
	looks := make([][]state, long+b.size.windows)
	tick := time.NewTicker(step)
	defer tick.Stop()
	var last []float64
	for i := range looks {
		<-tick.C // also the first: not the start
		if looks[i], err = c.look(); err != nil {
			return "", err
		}
		if i < long {
			continue
		}
		shares, sum := make([]float64, len(weights)), 0.0
		for j := range shares {
			shares[j] = (looks[i][j].busy - looks[i-long][j].busy).Seconds()
			sum += shares[j]
		}
		for j := range shares {
			shares[j] /= sum
		}
		each(shares)
		last = shares
	}
	return fmt.Sprintf("windows of %v; the last one: %.4f", b.size.window, last), nil
}
