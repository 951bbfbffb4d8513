// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"slices"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// witness reads the simulated GPU's own log.
func (d *demo) witness(ctx context.Context, r *report) error {
	if d.real {
		return nil
	}
	overlap, err := d.node.Daemon.Overlap(ctx)
	if err != nil {
		return err
	}
	r.overlap = &overlap
	log, err := d.node.Daemon.Log(ctx)
	if err != nil {
		return err
	}
	slices.SortStableFunc(log, func(a, b harness.Operation) int { return int(a.Submit - b.Submit) })
	r.work = map[harness.Tenant][]span{}
	for _, op := range log {
		if op.Class == harness.ClassWork && op.Start >= r.begin && op.End != 0 {
			r.work[op.Tenant] = append(r.work[op.Tenant], span{op.Start, op.End})
			if op.Start < r.end {
				r.busy += min(op.End, r.end) - op.Start
			}
		}
	}
	return nil
}

// busiest is a time of that length in which all tenants worked, if there is one.
func busiest(work map[harness.Tenant][]span, begin, end, length time.Duration) time.Duration {
	best, most := begin, -1
	for from := begin; from+length <= end; from += length / 4 {
		changes := 0
		var last harness.Tenant
		for _, at := range starts(work, from, from+length) {
			if at.tenant != last {
				changes++
				last = at.tenant
			}
		}
		if changes > most {
			best, most = from, changes
		}
	}
	return best
}

type started struct {
	tenant harness.Tenant
	at     time.Duration
}

// starts lists what began between two instants, in order.
func starts(work map[harness.Tenant][]span, from, to time.Duration) []started {
	var all []started
	for tenant, spans := range work {
		for _, s := range spans {
			if s.from >= from && s.from < to {
				all = append(all, started{tenant, s.from})
			}
		}
	}
	slices.SortFunc(all, func(a, b started) int { return int(a.at - b.at) })
	return all
}
