// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// A GPU whose memory two jobs would each have nearly all of: 1.9 times as much as
// there is. To bring that of one back takes about 10 ms in this simulation, with
// what must leave before.
const (
	crowdedMemory  = "1Gi"
	crowdedContext = "16Mi"
	crowdedShare   = "972Mi" // 0.95 of it
	crowdedManaged = 950 << 20
	crowdedRate    = "192Gi"
)

// fixedQuanta are those that are compared with the one that the arbiter finds, and
// for how much of the work: the shorter, the longer it takes.
var fixedQuanta = []fixedQuantum{{20 * time.Millisecond, .2}, {100 * time.Millisecond, .4}, {500 * time.Millisecond, 1}}

type fixedQuantum struct {
	quantum time.Duration
	part    float64
}

func (f fixedQuantum) key() string { return fmt.Sprint("quantum_", f.quantum) }

// crowded is a job that never lets the GPU go by itself and uses all its memory in
// each turn, with a part of its work.
func crowded(part float64) job {
	return job{name: "crowded", args: fmt.Sprint("--managed ", crowdedManaged), times: 3 * part}
}

// crowdedSteps does the same in steps of training, each of which it waits for.
func crowdedSteps() job {
	j := train
	j.name, j.args, j.times = "steps", train.args+fmt.Sprint(" --managed ", crowdedManaged), 3
	return j
}

// oversubscribed runs two jobs that do not fit together: one after the other, under
// hardware slicing, with quanta that are fixed, and as vgpu does it by itself.
func (b *bench) oversubscribed(ctx context.Context) error {
	simulated := []string{"--memory", crowdedMemory, "--context-memory", crowdedContext, "--swap-rate", crowdedRate}
	hardware := func(jobs ...job) (outcome, error) {
		s, err := b.startBare(ctx, "", simulated...)
		if err != nil {
			return outcome{}, err
		}
		return b.toTheEnd(ctx, s, jobs)
	}
	vgpu := func(quantum, longest time.Duration, jobs ...job) (outcome, error) {
		engine := fmt.Sprintf("oversubscription = 1.9\nswap_rate = %q\n", crowdedRate)
		if longest > 0 {
			engine += fmt.Sprintf("longest_quantum = %q\n", longest)
		}
		o := harness.DaemonOptions{Memory: crowdedMemory, ContextMemory: crowdedContext, SwapRate: crowdedRate, Quantum: quantum, Engine: engine}
		vgpus := plain(len(jobs))
		for i := range vgpus {
			vgpus[i] = map[string]string{"vgpu-shim.dev/memory": crowdedShare}
		}
		s, err := b.startArbited(ctx, o, vgpus)
		if err != nil {
			return outcome{}, err
		}
		return b.toTheEnd(ctx, s, jobs)
	}
	// over is the makespan of two over one after the other.
	over := func(j job, together func(...job) (outcome, error)) (float64, error) {
		alone, err := hardware(j)
		if err != nil {
			return 0, err
		}
		both, err := together(j, j)
		return ratio(both.makespan, 2*alone.makespan), err
	}
	found := func(jobs ...job) (outcome, error) { return vgpu(0, 0, jobs...) }

	more, notes := make(map[string]float64), []string(nil)
	value, err := over(crowded(1), found)
	if err != nil {
		return err
	}
	steps := 0.0
	if b.size.fixedQuanta {
		if more["hardware"], err = over(crowded(.2), hardware); err != nil {
			return err
		}
		notes = append(notes, fmt.Sprintf("hardware slicing %.2f", more["hardware"]))
		for _, f := range fixedQuanta {
			if more[f.key()], err = over(crowded(f.part), func(jobs ...job) (outcome, error) { return vgpu(f.quantum, f.quantum, jobs...) }); err != nil {
				return err
			}
			notes = append(notes, fmt.Sprintf("a quantum of %v %.2f", f.quantum, more[f.key()]))
		}
	}
	if steps, err = over(crowdedSteps(), found); err != nil {
		return err
	}
	b.row(row{
		name: "oversubscribed", value: value, unit: "of one after another", budget: 1.02, rule: most, samples: 1, more: more,
		note: strings.Join(append([]string{"two jobs with 0.95 of the memory each"}, notes...), ", "),
	})
	b.row(row{name: "oversubscribed_steps", value: steps, unit: "of one after another", budget: 1.02, rule: most, samples: 1, note: "the same in steps that are waited for"})
	return nil
}

// toTheEnd runs jobs together, to their end, and stops what they shared.
func (b *bench) toTheEnd(ctx context.Context, s sharing, jobs []job) (o outcome, err error) {
	defer func() { err = errors.Join(err, s.stop()) }()
	return b.together(ctx, s, jobs)
}
