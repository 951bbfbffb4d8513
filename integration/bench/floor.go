// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// floorRounds is how often the floor is measured. The best counts, as it does for
// what is measured in it.
const floorRounds = 3

// floor measures what others are measured in.
func (b *bench) floor(ctx context.Context) error {
	all := make(map[string]*rounds)
	for range floorRounds {
		lines, err := b.output(ctx, filepath.Join(b.programs, "floor"), strconv.Itoa(b.size.floorSamples/floorRounds),
			strconv.Itoa(b.cpus.clients[0]), strconv.Itoa(b.cpus.vgpud))
		if err != nil {
			return err
		}
		samples := make(map[string][]time.Duration)
		for _, line := range lines {
			name, value, _ := strings.Cut(line, " ")
			n, err := strconv.ParseInt(value, 10, 64)
			if err != nil {
				return fmt.Errorf("floor said %q: %w", line, err)
			}
			samples[name] = append(samples[name], time.Duration(n))
		}
		for name, s := range samples {
			if all[name] == nil {
				all[name] = &rounds{}
			}
			all[name].add(s)
		}
	}
	b.wake, b.roundTrip = all["wake"].median, all["round_trip"].median
	for _, f := range []struct{ row, name, unit string }{
		{"floor_wake", "wake", "ns"},
		{"floor_add", "add", "ps"},
		{"floor_round_trip", "round_trip", "ns"},
	} {
		r := all[f.name]
		b.row(row{
			name: f.row, value: float64(r.median), unit: f.unit, samples: r.samples,
			note: fmt.Sprintf("median; p99 %d; best of %d rounds", r.p99, floorRounds),
		})
	}
	return nil
}
