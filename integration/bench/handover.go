// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// gap is between two bursts of a client. It is longer than two switches: for one
// that is shorter the GPU would be kept (engine.linger), and not handed over.
const gap = 300 * time.Microsecond

// handover measures from one client's last work, seen complete, to the other's
// first work behind the gate.
func (b *bench) handover(ctx context.Context) (err error) {
	n, err := b.startNode(ctx, plain(2))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.stop()) }()
	var all rounds
	stop := watchRunnable()
	for range b.size.rounds {
		samples, err := b.handovers(ctx, n)
		if err != nil {
			return err
		}
		all.add(samples)
	}
	note := fmt.Sprintf("best of %d rounds; runnable tasks meanwhile: %.1f", b.size.rounds, stop())
	b.row(row{
		name: "handover_median", value: ratio(all.median, b.wake), unit: "wakes", budget: 4.5, rule: most, samples: all.samples,
		note: fmt.Sprintf("%v, goal 3; %s", all.median, note),
	})
	b.row(row{
		name: "handover_p99", value: ratio(all.p99, b.wake), unit: "wakes", budget: 15, rule: most, samples: all.samples,
		note: fmt.Sprint(all.p99),
	})
	return nil
}

// handovers is one round between all vGPUs of a vgpud.
func (b *bench) handovers(ctx context.Context, n *node) ([]time.Duration, error) {
	c, err := b.play(ctx, "handover", b.size.handovers, n.dirs, gap)
	if err != nil {
		return nil, err
	}
	samples, err := c.samples()
	return samples, errors.Join(err, c.stop())
}

// scaleRounds: a p99 of few rounds is too rough for a ratio of two, in the short
// form too.
const scaleRounds = 6

// scale compares the slowest hand-overs among many with those between two. They
// take turns, so that what the machine does else meets both.
func (b *bench) scale(ctx context.Context) (err error) {
	const many = 256
	var all [2]rounds
	var nodes [2]*node
	for i, vgpus := range []int{2, many} {
		if nodes[i], err = b.startNode(ctx, plain(vgpus)); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, nodes[i].stop()) }()
	}
	for range scaleRounds {
		for i, n := range nodes {
			samples, err := b.handovers(ctx, n)
			if err != nil {
				return err
			}
			all[i].add(samples)
		}
	}
	b.row(row{
		name: "scale_p99_256", value: ratio(all[1].p99, all[0].p99), unit: "of 2 vGPUs", budget: b.size.scaleBudget, rule: most, samples: all[1].samples,
		note: fmt.Sprintf("p99 %v over %v; medians %v and %v", all[1].p99, all[0].p99, all[1].median, all[0].median),
	})
	return nil
}

// first measures work that comes to a GPU which nobody uses, and counts the
// messages of one that has its grant already.
func (b *bench) first(ctx context.Context) (err error) {
	n, err := b.startNode(ctx, plain(2))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.stop()) }()
	var all rounds
	for range b.size.rounds {
		c, err := b.play(ctx, "first", b.size.firsts/b.size.rounds, n.dirs, gap)
		if err != nil {
			return err
		}
		samples, err := c.samples()
		if err := errors.Join(err, c.stop()); err != nil {
			return err
		}
		all.add(samples)
	}
	b.row(row{
		name: "first_grant", value: ratio(all.median, b.roundTrip), unit: "round trips", budget: 1.5, rule: most, samples: all.samples,
		note: fmt.Sprintf("%v; p99 %v; best of %d rounds", all.median, all.p99, b.size.rounds),
	})

	c, err := b.play(ctx, "kept", b.size.kept, n.dirs[:1], 0)
	if err != nil {
		return err
	}
	samples, err := c.samples()
	if err != nil {
		return errors.Join(err, c.stop())
	}
	states, err := c.look()
	if err := errors.Join(err, c.stop()); err != nil {
		return err
	}
	b.row(row{
		name: "first_grant_kept", value: float64(states[0].messages), unit: "messages", budget: 0, rule: most, samples: len(samples),
		note: fmt.Sprintf("a burst took %v (median)", quantile(samples, .5)),
	})
	return nil
}

func ratio(a, b time.Duration) float64 { return float64(a) / float64(b) }
