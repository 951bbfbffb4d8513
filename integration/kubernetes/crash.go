// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// Crash ends all that runs on the node at once, and takes away what a machine forgets
// when it is switched off: processes, mounts, cgroups, and what containerd, vgpud and
// the driver keep in memory file systems. What kubelet, the driver and the network
// have on disk stays, and so do the GPUs.
func (n *Node) Crash(ctx context.Context) error {
	var errs []error
	all := n.processes()
	for _, p := range slices.Backward(all) {
		errs = append(errs, p.Kill())
	}
	n.driver, n.kubelet = nil, nil
	errs = append(errs, harness.Eventually(ctx, time.Minute, n.killPods))
	for _, m := range slices.Backward(harness.MountsUnder(n.Dir)) {
		if m != n.kubeletRoot() {
			errs = append(errs, unix.Unmount(m, unix.MNT_DETACH))
		}
	}
	for _, dir := range []string{filepath.Join(n.Containerd.Dir, "s"), n.Daemon.State, n.cdiDir()} {
		errs = append(errs, os.RemoveAll(dir))
	}
	return errors.Join(errs...)
}

// killPods kills the shims and all processes in the pods' cgroups, and removes these.
func (n *Node) killPods() error {
	shims, err := n.shims()
	if err != nil {
		return err
	}
	for _, pid := range shims {
		_ = unix.Kill(pid, unix.SIGKILL)
	}
	left := len(shims)
	var groups []string
	for _, hierarchy := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		roots, err := filepath.Glob(filepath.Join(hierarchy, n.Name, "kubepods"))
		if err != nil {
			return err
		}
		for _, root := range roots {
			err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
				if err != nil && !errors.Is(err, fs.ErrNotExist) {
					return err
				}
				if err == nil && d.IsDir() {
					groups = append(groups, path)
				}
				return nil
			})
			if err != nil {
				return err
			}
		}
	}
	for _, g := range slices.Backward(groups) {
		procs, _ := os.ReadFile(filepath.Join(g, "cgroup.procs"))
		for line := range strings.Lines(string(procs)) {
			var pid int
			if _, err := fmt.Sscan(line, &pid); err == nil && pid > 0 {
				_ = unix.Kill(pid, unix.SIGKILL)
				left++
			}
		}
		if len(procs) == 0 {
			_ = os.Remove(g)
		}
	}
	if left > 0 {
		return fmt.Errorf("%d processes of pods run on node %s", left, n.Name)
	}
	return nil
}

// Boot starts all that Crash has ended, as a machine does that is switched on.
func (n *Node) Boot(ctx context.Context) error {
	if err := n.Daemon.Start(ctx); err != nil {
		return err
	}
	if err := n.Containerd.Start(ctx); err != nil {
		return err
	}
	if err := n.StartKubelet(ctx); err != nil {
		return err
	}
	return n.StartDriver(ctx)
}
