// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// sampleEvery is how often vgpud is asked who holds the GPU.
const sampleEvery = 4 * time.Millisecond

// mark is what a vGPU did at one instant.
type mark uint8

const (
	nothing mark = iota
	waiting
	holding
)

// sample is all vGPUs at one instant, in the order of the rows.
type sample struct {
	at    time.Duration // since the watching began
	marks []mark
}

// watch follows the containers until all of them have ended, and draws.
func (d *demo) watch(ctx context.Context, names []string, containers []*harness.Container) ([]sample, error) {
	row := map[string]int{}
	for i, name := range names {
		row[name] = i
	}
	var samples []sample
	turns := make([]uint64, len(names))
	begin := time.Now()
	drawn := begin
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	d.screen.begin(names)
	defer d.screen.end()
	for {
		vgpus, err := d.node.Daemon.VGPUs(ctx)
		if err != nil {
			return nil, fmt.Errorf("vgpud does not answer: %w", err)
		}
		s := sample{at: time.Since(begin), marks: make([]mark, len(names))}
		for _, v := range vgpus {
			i, ok := row[v.GetContainer().GetId()]
			if !ok {
				continue
			}
			turns[i] = v.GetUsage().GetTurns()
			switch v.GetState() {
			case "PENDING":
				s.marks[i] = waiting
			case "HOLDING", "DRAINING", "OVERRUN":
				s.marks[i] = holding
			}
		}
		samples = append(samples, s)
		if ended(containers) {
			return samples, nil
		}
		if time.Since(drawn) >= d.screen.every() {
			drawn = time.Now()
			d.screen.draw(names, samples, turns)
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-tick.C:
		}
	}
}

func ended(containers []*harness.Container) bool {
	for _, c := range containers {
		if !c.Ended() {
			return false
		}
	}
	return true
}
