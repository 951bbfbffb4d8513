// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// runcState is where containerd has runc keep what it knows, a directory for each
// namespace.
const runcState = "/run/containerd/runc"

// CheckLeaks returns an error that lists what is left although no container
// should be: processes, mounts, vGPUs and their directories, cgroups, shim
// sockets. Shims end a moment after their container was deleted, so it waits
// for a while. The containers must have been removed.
func (n *Node) CheckLeaks(ctx context.Context) error {
	if left := n.Left(ctx); len(left) > 0 {
		return errors.New("left behind: " + strings.Join(left, "; "))
	}
	return nil
}

// Left is what CheckLeaks finds, a line each.
func (n *Node) Left(ctx context.Context) (left []string) {
	limited, cancel := context.WithTimeout(ctx, stopPatience)
	defer cancel()
	if err := eventually(limited, nil, func() error {
		// Of the last look that was made to its end.
		if now := n.leaks(limited); limited.Err() == nil || left == nil {
			left = now
		}
		if len(left) > 0 {
			return errors.New("something is left")
		}
		return nil
	}); err != nil && len(left) == 0 {
		left = []string{err.Error()}
	}
	return left
}

func (n *Node) leaks(ctx context.Context) []string {
	var left []string
	for _, p := range n.strays() {
		if !n.ours(p.pid) {
			left = append(left, fmt.Sprintf("process %d %s", p.pid, strings.Join(p.args, " ")))
		}
	}
	for _, m := range MountsUnder(n.Dir) {
		if !slices.Contains(n.memories, m) && !slices.ContainsFunc(n.overlays, func(o *Overlay) bool { return m == o.Rootfs || m == o.memory || slices.Contains(o.above, m) }) {
			left = append(left, "mount "+m)
		}
	}
	for _, dir := range n.cgroups("*") {
		left = append(left, "cgroup "+dir)
	}
	for _, c := range n.Containerd.launched() {
		if socket := c.daemon.shimSocket(c.ID); exists(socket) {
			left = append(left, "socket "+socket)
		}
		if bundle := c.daemon.BundlePath(c.ID); exists(bundle) {
			left = append(left, "bundle "+bundle)
		}
		if state := filepath.Join(runcState, c.daemon.Namespace, c.ID); exists(state) {
			left = append(left, "runc's state "+state)
		}
	}
	if n.Daemon == nil {
		return left
	}
	entries, err := os.ReadDir(filepath.Join(n.Daemon.State, "c"))
	if err != nil {
		left = append(left, err.Error())
	}
	for _, e := range entries {
		left = append(left, "vGPU file "+filepath.Join(n.Daemon.State, "c", e.Name()))
	}
	vgpus, err := n.Daemon.VGPUs(ctx)
	if err != nil {
		left = append(left, err.Error())
	}
	for _, v := range vgpus {
		left = append(left, "vGPU "+v.GetId()+" of "+v.GetContainer().GetId())
	}
	return left
}

// ours tells whether a process is one of the Node's daemons.
func (n *Node) ours(pid int) bool {
	if n.Daemon != nil && n.Daemon.process != nil && n.Daemon.process.PID() == pid {
		return true
	}
	return n.Containerd != nil && n.Containerd.process != nil && n.Containerd.process.PID() == pid
}

// strays lists the processes that name the Node's directory, and those in a
// cgroup of one of its containers.
func (n *Node) strays() []process {
	found := naming(n.Dir)
	byPID := map[int][]string{}
	for _, p := range processes() {
		byPID[p.pid] = p.args
	}
	for _, dir := range n.cgroups("*") {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		if err != nil {
			continue // it went meanwhile
		}
		for _, f := range strings.Fields(string(b)) {
			pid, err := strconv.Atoi(f)
			if err != nil || slices.ContainsFunc(found, func(p process) bool { return p.pid == pid }) {
				continue
			}
			args := byPID[pid]
			if args == nil {
				args = []string{"(no command line)"} // in the middle of execve
			}
			found = append(found, process{pid, args})
		}
	}
	return found
}

// cgroups lists the directories of the Node's containers in every hierarchy,
// deepest first; with an empty pattern the namespaces' own as well.
func (n *Node) cgroups(pattern string) []string {
	names := []string{filepath.Base(n.Dir)}
	if n.Containerd != nil {
		for _, c := range n.Containerd.containers {
			if !slices.Contains(names, c.daemon.Namespace) {
				names = append(names, c.daemon.Namespace)
			}
		}
	}
	var all []string
	for _, name := range names {
		for _, base := range []string{"/sys/fs/cgroup", "/sys/fs/cgroup/*"} {
			// vgpud makes one below a container's; the patterns are well formed.
			deeper, _ := filepath.Glob(filepath.Join(base, name, "*", "*", "cgroup.procs"))
			below, _ := filepath.Glob(filepath.Join(base, name, "*", "cgroup.procs"))
			for _, f := range append(deeper, below...) {
				all = append(all, filepath.Dir(f))
			}
			if pattern == "" {
				own, _ := filepath.Glob(filepath.Join(base, name))
				all = append(all, own...)
			}
		}
	}
	return all
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
