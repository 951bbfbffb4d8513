// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strconv"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// drain measures how long turns take to drain. Two programs keep their queues full
// of short kernels and never look back, the one of 20 us and the other of 100 us, so
// each turn is revoked. Everything is real but the GPU, which takes its time.
func (b *bench) drain(ctx context.Context) (err error) {
	n, err := b.startUnpinned(ctx, harness.DaemonOptions{LogLevel: "trace"}, plain(2))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, n.stop()) }()
	stop := watchRunnable()
	err = b.hogs(ctx, n, b.size.drains, 20, 100)
	busy := stop()
	if err != nil {
		return err
	}
	turns, err := n.daemon.Turns()
	if err != nil {
		return err
	}
	all := roundsOf(turns)
	if all.samples == 0 {
		return fmt.Errorf("none of %d turns drained: the programs did not get the CPU that it takes to keep their queues full", len(turns))
	}
	b.row(row{
		name: "drain_p99", value: ratio(all.p99, quantum/10), unit: "quantum / 10", budget: 1, rule: most, samples: all.samples,
		note: fmt.Sprintf("%v; median %v; best of %d rounds; runnable tasks meanwhile: %.1f", all.p99, all.median, max(all.samples/drainsARound, 1), busy),
	})
	return nil
}

// drainsARound: one of so many may be above the 99th percentile.
const drainsARound = 150

// roundsOf takes what vgpud saw of drains, in the order in which they came, as
// rounds.
func roundsOf(turns []harness.Turn) (all rounds) {
	var took []time.Duration
	for _, t := range turns {
		if t.Drain > 0 {
			took = append(took, t.Drain)
		}
		if len(took) == drainsARound {
			all.add(took)
			took = nil
		}
	}
	if all.samples == 0 && len(took) > 0 { // drains that take long are few
		all.add(took)
	}
	return all
}

// hogs runs programs with kernels of so many microseconds beside each other, one
// in each vGPU, for so long.
func (b *bench) hogs(ctx context.Context, n *node, long time.Duration, us ...int) error {
	ended := make(chan error)
	for i, us := range us {
		cmd, err := b.command(ctx, filepath.Join(b.dir, fmt.Sprint("hog", i)), n.edits[i],
			filepath.Join(b.paths.Workload, "hog"), "--kernels", b.paths.Kernels,
			"--ms", strconv.FormatInt(long.Milliseconds(), 10), "--depth", "0", "--kernel-us", strconv.Itoa(us))
		if err != nil {
			return err
		}
		var output bytes.Buffer
		cmd.Stdout, cmd.Stderr = &output, &output
		if err := cmd.Start(); err != nil {
			return fmt.Errorf("failed to start a program beside vgpud: %w", err)
		}
		go func() {
			err := cmd.Wait()
			if err != nil {
				err = fmt.Errorf("a program with kernels of %d us: %w: %s", us, err, output.Bytes())
			}
			ended <- err
		}()
	}
	var errs []error
	for range us {
		errs = append(errs, <-ended)
	}
	return errors.Join(errs...)
}
