// SPDX-License-Identifier: Apache-2.0

package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// CheckLeaks returns an error that lists what is left of pods although the node
// has none any more: tasks, shims, mounts, cgroups, vGPUs and their directories,
// claims, addresses. It waits for a while: kubelet removes a pod's cgroups last, after the
// pod is gone for the API server.
func (n *Node) CheckLeaks(ctx context.Context) error {
	return harness.Eventually(ctx, time.Minute, func() error {
		left, err := n.leaks(ctx)
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("left behind on %s: %s", n.Name, strings.Join(left, "; "))
		}
		return err
	})
}

func (n *Node) leaks(ctx context.Context) (left []string, err error) {
	if n.Daemon != nil {
		vgpus, err := n.Daemon.VGPUs(ctx)
		if err != nil {
			return nil, err
		}
		for _, v := range vgpus {
			left = append(left, "vGPU "+v.GetId()+" of "+v.GetContainer().GetId())
		}
	}
	var errs []error
	entries := func(dir string, but ...string) {
		all, err := os.ReadDir(dir)
		if err != nil && !errors.Is(err, os.ErrNotExist) { // some are made for the first pod
			errs = append(errs, err)
		}
		for _, e := range all {
			if !slices.Contains(but, e.Name()) {
				left = append(left, filepath.Join(dir, e.Name()))
			}
		}
	}
	if n.Daemon != nil {
		var claims *v1.ListClaimsResponse
		if err := n.Daemon.Control(func(c v1.ControlClient) (err error) {
			claims, err = c.ListClaims(ctx, &v1.ListClaimsRequest{})
			return err
		}); err != nil {
			errs = append(errs, err)
		}
		for _, c := range claims.GetClaims() {
			left = append(left, "claim "+c.GetName()+" in vgpud")
		}
		entries(filepath.Join(n.Daemon.State, "c"))
	}
	entries(filepath.Join(n.pluginDir(), "claims"))
	entries(n.cdiDir())
	entries(filepath.Dir(n.Containerd.BundlePath("any")))
	entries(filepath.Join(n.Dir, "addresses", "pods"), "lock", "last_reserved_ip.0")
	entries(filepath.Join(n.kubeletRoot(), "pods"))
	for _, m := range harness.MountsUnder(n.Dir) {
		if m != n.kubeletRoot() {
			left = append(left, "mount "+m)
		}
	}
	for _, hierarchy := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
		for _, class := range []string{"pod*", "burstable/pod*", "besteffort/pod*"} {
			groups, err := filepath.Glob(filepath.Join(hierarchy, n.Name, "kubepods", class))
			left, errs = append(left, groups...), append(errs, err)
		}
	}
	shims, err := n.shims()
	for _, pid := range shims {
		left = append(left, fmt.Sprintf("shim %d", pid))
	}
	return left, errors.Join(append(errs, err)...)
}

// shims lists those of the node's containerd.
func (n *Node) shims() (pids []int, err error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // it ended meanwhile
		}
		args := strings.Split(string(b), "\x00")
		var pid int
		if strings.Contains(args[0], "shim") && slices.Contains(args, n.Containerd.Socket) {
			if _, err := fmt.Sscanf(f, "/proc/%d/", &pid); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids, err
}
