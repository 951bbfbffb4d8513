// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// result is what vgpu install and vgpu uninstall print.
type result struct {
	Changes []struct{ Action, Path string }
	Notes   []string
	Then    []string
}

// restart tells whether containerd must be restarted for what was changed.
func (r result) restart() bool {
	return slices.ContainsFunc(r.Then, func(s string) bool { return strings.HasPrefix(s, "systemctl restart containerd") })
}

// vgpu runs the image's vgpu on the node.
func (n *node) vgpu(ctx context.Context, args ...string) (r result, err error) {
	dir, err := os.Open(n.from)
	if err != nil {
		return r, fmt.Errorf("failed to find the product in this image: %w", err)
	}
	defer dir.Close()
	// The node's mounts do not have it, but its processes' descriptors do.
	from := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), dir.Fd())
	if args[0] == "install" {
		args = append(args, "--from", from)
	}
	out, err := onNode(ctx, from+"/bin/vgpu", append(args, "--prefix", n.prefix, "--output", "json")...)
	if err != nil {
		return r, err
	}
	if err := json.Unmarshal(out, &r); err != nil {
		return r, fmt.Errorf("failed to read what vgpu %s printed: %w", args[0], err)
	}
	for _, c := range r.Changes {
		fmt.Println(c.Action, c.Path)
	}
	for _, note := range r.Notes {
		fmt.Println("note:", note)
	}
	if len(r.Changes) == 0 {
		fmt.Println("nothing to change")
	}
	return r, nil
}

func (n *node) install(ctx context.Context, args ...string) error {
	r, err := n.vgpu(ctx, append([]string{"install"}, args...)...)
	if err != nil {
		return err
	}
	return n.containerd.settle(ctx, true, r.restart())
}

func (n *node) uninstall(ctx context.Context, state, plugin string) error {
	if err := unprepared(onNodePath(filepath.Join(plugin, "claims"))); err != nil {
		return err
	}
	// Nobody starts a vgpud on it from here on.
	unlock, err := lockState(ctx, onNodePath(filepath.Join(state, "lock")))
	if err != nil {
		return err
	}
	defer unlock()
	r, err := n.vgpu(ctx, "uninstall")
	if err != nil {
		return err
	}
	for _, dir := range []string{state, plugin} {
		if err := os.RemoveAll(onNodePath(dir)); err != nil {
			return fmt.Errorf("failed to remove %s of the node: %w", dir, err)
		}
	}
	return n.containerd.settle(ctx, false, r.restart())
}

// unprepared fails while claims are prepared on the node: kubelet could not release
// them any more.
func unprepared(dir string) error {
	claims, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("failed to look for prepared claims: %w", err)
	}
	if len(claims) > 0 {
		return fmt.Errorf("%d claims are prepared on this node: delete the pods that use them, with vgpu-kubelet running (uninstall=false)", len(claims))
	}
	return nil
}

// stopLimit bounds how long a vgpud may take to end whose pod is being removed.
const stopLimit = 30 * time.Second

// lockState takes vgpud's lock, if there is one.
func lockState(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("failed to see whether a vgpud runs: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, stopLimit)
	defer cancel()
	err = eventually(ctx, func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("a vgpud still runs on this node: stop it (systemctl disable --now vgpud.socket vgpud.service, if systemd started it): %w", err)
	}
	return func() { f.Close() }, nil
}
