// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Node is a private containerd and a private vgpud that belong together.
type Node struct {
	Dir        string
	Paths      Paths
	Daemon     *Daemon // nil where Options.NoDaemon
	Containerd *Containerd

	overlays []*Overlay
	memories []string // mounts of Memory
}

// Options choose a Node.
type Options struct {
	Version   Version
	Runtime   string // default runtime of containers
	Daemon    DaemonOptions
	Config    string       // path of containerd's configuration; in its directory if empty
	CRI       bool         // as in ContainerdOptions
	Configure func() error // as in ContainerdOptions
	NoDaemon  bool         // no vgpud; shims are pointed at a socket where nobody listens
	Parent    string       // of the Node's directory: /tmp if empty
}

// Start starts a Node. What was started before an error is ended again, also where
// Configure ends the goroutine, as a test's Fatal does.
func Start(ctx context.Context, paths Paths, o Options) (_ *Node, err error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("real containers need root: run this as root")
	}
	// Short, because a socket's path has 107 bytes at most.
	dir, err := os.MkdirTemp(cmp.Or(o.Parent, "/tmp"), "vgpu-")
	if err != nil {
		return nil, err
	}
	n := &Node{Dir: dir, Paths: paths}
	started := false
	defer func() {
		if !started {
			cleanup, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			err = errors.Join(err, n.Close(cleanup))
		}
	}()
	// A container's processes, which may not be root, pass through here.
	if err := os.Chmod(dir, 0o711); err != nil {
		return nil, err
	}
	o.Daemon.Dir = filepath.Join(dir, "v")
	daemon := &Daemon{Dir: o.Daemon.Dir, Socket: filepath.Join(o.Daemon.Dir, "s", "vgpud.sock")}
	if o.NoDaemon {
		if err := os.Mkdir(daemon.Dir, 0o700); err != nil {
			return nil, err
		}
	} else {
		if daemon, err = StartDaemon(ctx, paths, o.Daemon); daemon != nil {
			n.Daemon = daemon
		}
		if err != nil {
			return nil, err
		}
	}
	config, err := daemon.ShimConfig()
	if err != nil {
		return nil, err
	}
	n.Containerd, err = StartContainerd(ctx, paths, ContainerdOptions{
		Version:   o.Version,
		Dir:       filepath.Join(dir, "c"),
		Namespace: filepath.Base(dir),
		Runtime:   o.Runtime,
		Env:       []string{"VGPU_SHIM_CONFIG=" + config},
		Config:    o.Config,
		CRI:       o.CRI,
		Configure: o.Configure,
	})
	if err != nil {
		return nil, err
	}
	started = true
	return n, nil
}

// Overlay mounts a root file system in which every program of this machine
// exists; Close unmounts it.
func (n *Node) Overlay() (*Overlay, error) {
	o, err := NewOverlay(filepath.Join(n.Dir, fmt.Sprintf("o%d", len(n.overlays))))
	if err == nil {
		n.overlays = append(n.overlays, o)
	}
	return o, err
}

// Memory mounts a file system of its own on a directory below the Node's, of a size
// as for tmpfs(5); Close unmounts it.
func (n *Node) Memory(dir, size string) error {
	if err := os.MkdirAll(dir, 0o711); err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0711,size="+size); err != nil {
		return fmt.Errorf("failed to mount a tmpfs on %s: %w", dir, err)
	}
	n.memories = append(n.memories, dir)
	return nil
}

// Close ends everything: containers, daemons, left-over processes, mounts,
// cgroups, the directory. It goes on after an error, and returns all of them.
func (n *Node) Close(ctx context.Context) error {
	var errs []error
	if n.Containerd != nil && n.Containerd.process != nil {
		errs = append(errs, n.Containerd.close(ctx))
	}
	if n.Daemon != nil && n.Daemon.process != nil {
		errs = append(errs, n.Daemon.process.Stop())
	}
	errs = append(errs, n.sweep(ctx))
	for _, dir := range n.runcRoots() {
		// Who killed a shim has left a container's state there, too.
		errs = append(errs, os.RemoveAll(dir))
	}
	for _, o := range n.overlays {
		errs = append(errs, o.Close())
	}
	for _, m := range MountsUnder(n.Dir) {
		if err := unix.Unmount(m, unix.MNT_DETACH); err != nil {
			errs = append(errs, fmt.Errorf("failed to unmount %s: %w", m, err))
		}
	}
	// Only a directory without mounts is removed: an overlay's lower layer is /.
	if left := MountsUnder(n.Dir); len(left) == 0 {
		errs = append(errs, os.RemoveAll(n.Dir))
	} else {
		errs = append(errs, fmt.Errorf("still mounted: %s", strings.Join(left, ", ")))
	}
	return errors.Join(errs...)
}

// runcRoots are the directories that runc made for the Node's namespaces, which all
// begin with its name.
func (n *Node) runcRoots() []string {
	own := filepath.Join(runcState, filepath.Base(n.Dir))
	all, _ := filepath.Glob(own + "-*") // the pattern is well formed
	if exists(own) {
		all = append(all, own)
	}
	return all
}

// sweep kills the processes that Close's orderly part has left, and removes the
// cgroups that runc made for the namespace.
func (n *Node) sweep(ctx context.Context) error {
	kill := func() error {
		// What is frozen under cgroup v1 does not even take SIGKILL.
		for _, dir := range n.cgroups("*") {
			_ = os.WriteFile(filepath.Join(dir, "freezer.state"), []byte("THAWED"), 0)
			_ = os.WriteFile(filepath.Join(dir, "cgroup.freeze"), []byte("0"), 0)
		}
		var left []string
		for _, p := range n.strays() {
			_ = unix.Kill(p.pid, unix.SIGKILL)
			left = append(left, strings.Join(p.args, " "))
		}
		if len(left) > 0 {
			return fmt.Errorf("processes stay: %s", strings.Join(left, "; "))
		}
		for _, dir := range n.cgroups("") {
			if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, stopPatience)
	defer cancel()
	return eventually(limited, nil, kill)
}
