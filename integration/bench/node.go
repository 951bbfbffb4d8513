// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// quantum is the default one.
const quantum = 20 * time.Millisecond

// node is a vgpud with one simulated GPU, in a process of its own, and its vGPUs.
type node struct {
	daemon *harness.Daemon
	dirs   []string // of the vGPUs: where their clients connect
	edits  []*v1.Edits
}

// startNode starts a vgpud and makes vGPUs with these annotations, one for each
// element. It is a fresh one: nothing that was learned before counts.
func (b *bench) startNode(ctx context.Context, vgpus []map[string]string) (*node, error) {
	n, err := b.startUnpinned(ctx, harness.DaemonOptions{}, vgpus)
	if err != nil {
		return nil, err
	}
	if err := pin(n.pid(), b.cpus.vgpud); err != nil {
		return nil, errors.Join(err, n.stop())
	}
	return n, nil
}

// startUnpinned leaves to the scheduler where vgpud runs.
func (b *bench) startUnpinned(ctx context.Context, o harness.DaemonOptions, vgpus []map[string]string) (_ *node, err error) {
	b.vgpuds++
	dir := filepath.Join(b.dir, fmt.Sprint(b.vgpuds))
	o.Dir = dir
	if o.Quantum == 0 {
		o.Quantum = quantum
	}
	daemon, err := harness.StartDaemon(ctx, b.paths, o)
	if err != nil {
		return nil, err
	}
	n := &node{daemon: daemon}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.stop())
		}
	}()
	return n, daemon.Control(func(c v1.ControlClient) error {
		for i, annotations := range vgpus {
			resp, err := c.Create(ctx, &v1.CreateRequest{
				Container: &v1.Container{Containerd: "bench", Namespace: "bench", Id: fmt.Sprint(i)},
				Instance:  "1", Bundle: dir, DefaultCount: 1, Annotations: annotations,
			})
			if err != nil {
				return fmt.Errorf("failed to make a vGPU: %w", err)
			}
			n.dirs = append(n.dirs, resp.GetEdits().GetMounts()[0].GetSource())
			n.edits = append(n.edits, resp.GetEdits())
		}
		return nil
	})
}

// plain is so many vGPUs that ask for nothing.
func plain(n int) []map[string]string { return make([]map[string]string, n) }

func (n *node) stop() error { return stop(n.daemon.Process()) }

// stop ends a vgpud, which may be nil. That it has ended by itself is an error: what was
// measured without it would else be taken for what other programs have spoilt.
func stop(vgpud *harness.Process) error {
	if vgpud == nil {
		return nil
	}
	select {
	case <-vgpud.Done():
		return fmt.Errorf("%s had ended by itself: %s", vgpud.Name, vgpud.Tail())
	default:
		return vgpud.Stop()
	}
}

func (n *node) pid() int { return n.daemon.Process().PID() }

// turns is how many have ended.
func (n *node) turns(ctx context.Context) (uint64, error) {
	gpus, err := n.daemon.PhysicalGPUs(ctx)
	if err != nil {
		return 0, err
	}
	sum := uint64(0)
	for _, g := range gpus {
		sum += g.GetTurns()
	}
	return sum, nil
}
