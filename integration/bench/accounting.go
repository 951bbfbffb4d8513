// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// accounting compares what vgpud says that vGPUs held with what the simulated GPU
// says of itself, while two jobs keep their queues full.
func (b *bench) accounting(ctx context.Context) (err error) {
	n, err := b.startUnpinned(ctx, harness.DaemonOptions{}, plain(2))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.stop()) }()
	if err := b.hogs(ctx, n, b.size.account, 1000, 3000); err != nil {
		return err
	}
	vgpus, err := n.daemon.VGPUs(ctx)
	if err != nil {
		return err
	}
	var held time.Duration
	turns := uint64(0)
	for _, v := range vgpus {
		held += v.GetUsage().GetHeld().AsDuration()
		turns += v.GetUsage().GetTurns()
	}
	gpu, err := n.daemon.Overlap(ctx)
	if err != nil {
		return err
	}
	if gpu.Lost > 0 || gpu.BusyNS == 0 {
		return fmt.Errorf("the simulated GPU's log is of no use: %d ns busy, %d records lost", gpu.BusyNS, gpu.Lost)
	}
	busy := time.Duration(gpu.BusyNS)
	b.row(row{
		name: "accounting_error", value: math.Abs(ratio(held-busy, busy)), unit: "of the GPU's own time", budget: b.size.accountBudget, rule: most, samples: int(turns),
		note: fmt.Sprintf("vgpud says %v, the GPU %v, in %d turns", held, busy, turns),
	})
	return nil
}
