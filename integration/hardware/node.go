// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/vgpu-shim/vgpu/integration/harness"
	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// node is a vgpud over the GPUs of this machine, and its vGPUs.
type node struct {
	h      *hardware
	daemon *harness.Daemon
	vgpus  []*vgpu
}

// startNode starts a vgpud and makes vGPUs with these annotations (without their
// prefix), one for each element.
func (h *hardware) startNode(ctx context.Context, logLevel string, vgpus ...map[string]string) (_ *node, err error) {
	daemon, err := h.startDaemon(ctx, logLevel)
	if err != nil {
		return nil, err
	}
	n := &node{h: h, daemon: daemon}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.stop())
		}
	}()
	return n, daemon.Control(func(c v1.ControlClient) error {
		for i, asked := range vgpus {
			annotations := map[string]string{}
			for key, value := range asked {
				annotations["vgpu-shim.dev/"+key] = value
			}
			limited, cancel := context.WithTimeout(ctx, patience)
			resp, err := c.Create(limited, &v1.CreateRequest{
				Container: &v1.Container{Containerd: "hardware", Namespace: "hardware", Id: fmt.Sprint(i)},
				Instance:  "1", Bundle: daemon.Dir, DefaultCount: 1, Annotations: annotations,
			})
			cancel()
			if err != nil {
				return fmt.Errorf("failed to make a vGPU: %w", err)
			}
			n.vgpus = append(n.vgpus, &vgpu{h: h, id: resp.GetId(), dir: resp.GetEdits().GetMounts()[0].GetSource(), real: h.driver})
		}
		return nil
	})
}

// startDaemon starts a vgpud. On hardware it is one that finds the driver by itself,
// else one that was told where it is: see toldWhere.
func (h *hardware) startDaemon(ctx context.Context, logLevel string) (*harness.Daemon, error) {
	h.mu.Lock()
	h.daemons++
	dir, told := filepath.Join(h.dir, fmt.Sprint("d", h.daemons)), h.told
	h.mu.Unlock()
	o := harness.DaemonOptions{Dir: dir, LogLevel: logLevel, GPUs: "nvml", Env: h.driver.environment()}
	paths := h.paths
	switch {
	case h.simulate:
		o.GPUs = "sim:1"
		if err := useMachine(dir, h.driver.machine); err != nil {
			return nil, err
		}
	case told:
		if err := h.toldWhere(&paths, &o); err != nil {
			return nil, err
		}
	}
	return harness.StartDaemon(ctx, paths, o)
}

// toldWhere makes vgpud take the real driver's files for a simulated driver's, whose
// places it is told. That is for machines on which it can not list the driver's files
// by itself, which is a failed check of its own: all else can be looked at still.
func (h *hardware) toldWhere(paths *harness.Paths, o *harness.DaemonOptions) error {
	paths.Simulated = filepath.Join(o.Dir, "driver")
	o.GPUs = fmt.Sprint("sim:", h.gpus)
	lib := filepath.Join(paths.Simulated, "lib")
	machine := os.Getenv("SIMGPU_MACHINE") // this may be the simulated driver all the same
	if machine == "" {
		machine = h.dir // vgpud wants a directory that is not empty, and does not look into it
	}
	return errors.Join(
		os.MkdirAll(lib, 0o755),
		useMachine(o.Dir, machine),
		os.Symlink(h.driver.cuda, filepath.Join(lib, "libcuda.so.1")),
		os.Symlink(h.driver.nvml, filepath.Join(lib, "libnvidia-ml.so.1")),
	)
}

// useMachine puts a directory where vgpud looks for that of its simulated machine.
func useMachine(dir, machine string) error {
	return errors.Join(os.MkdirAll(dir, 0o700), os.Symlink(machine, filepath.Join(dir, "sim")))
}

// stop ends the daemon; what it said last is kept if it had to be killed.
func (n *node) stop() error {
	if n.daemon.Process() == nil {
		return nil
	}
	if err := n.daemon.Process().Stop(); err != nil {
		return fmt.Errorf("%w: %s", err, n.daemon.Process().Tail())
	}
	return nil
}

// overruns is how many turns of all vGPUs did not drain in time.
func (n *node) overruns(ctx context.Context) (turns, overruns uint64, err error) {
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	all, err := n.daemon.VGPUs(limited)
	for _, v := range all {
		turns += v.GetUsage().GetTurns()
		overruns += v.GetUsage().GetOverruns()
	}
	return turns, overruns, err
}
