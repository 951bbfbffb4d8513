// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"
)

// startLimit bounds how long a daemon may take until it answers.
const startLimit = 30 * time.Second

// Containerd is a private daemon of one version. Its root, state and sockets
// are in Dir; the one thing that it shares with others is the directory of shim
// sockets, which every containerd before 2.4 has hard-coded.
type Containerd struct {
	Version   Version
	Dir       string
	Socket    string
	Namespace string // of all containers here; unique, so that cgroups are too
	Runtime   string // for containers that name none

	config     string // path of its configuration
	cri        bool   // whether that has CRI
	bin        string // directory of this version's programs
	newest     string // directory of the newest version's
	env        []string
	process    *Process
	mu         sync.Mutex   // of containers: several may be launched at once
	containers []*Container // all that were ever launched
}

// in is the daemon as a container in a namespace sees it; empty: that of all.
func (c *Containerd) in(namespace string) *Containerd {
	if namespace == "" {
		return c
	}
	return &Containerd{
		Version: c.Version, Dir: c.Dir, Socket: c.Socket, Namespace: namespace, Runtime: c.Runtime,
		bin: c.bin, newest: c.newest, env: c.env, process: c.process,
	}
}

// ContainerdOptions are what differs between private daemons.
type ContainerdOptions struct {
	Version   Version
	Dir       string // made if missing; keep it short, sockets have long names
	Namespace string
	Runtime   string   // default runtime of containers: io.containerd.vgpu.v1
	Env       []string // added to the daemon's environment, and so to the shims'

	Config    string       // path of its configuration; in Dir if empty
	CRI       bool         // of those that have it; ctr needs none
	Configure func() error // changes the configuration before the daemon starts
}

// StartContainerd starts a daemon and waits until it answers.
func StartContainerd(ctx context.Context, paths Paths, o ContainerdOptions) (*Containerd, error) {
	bin, err := paths.ContainerdBin(o.Version)
	if err != nil {
		return nil, err
	}
	newest, err := paths.ContainerdBin(Containerd24)
	if err != nil {
		return nil, err
	}
	c := &Containerd{
		newest:    newest,
		Version:   o.Version,
		Dir:       o.Dir,
		Socket:    filepath.Join(o.Dir, "c.sock"),
		Namespace: o.Namespace,
		Runtime:   o.Runtime,
		bin:       bin,
	}
	if c.Runtime == "" {
		c.Runtime = VGPURuntime
	}
	c.config = cmp.Or(o.Config, filepath.Join(o.Dir, "config.toml"))
	// Nothing of the caller's environment goes in but where to find programs:
	// shims inherit it, and the private daemon should be the same everywhere.
	c.env = append([]string{
		searchPath(paths, bin),
		"HOME=" + o.Dir,
		"TMPDIR=" + o.Dir,
		// Said on stderr by every ctr command on a machine with cgroup v1.
		"CONTAINERD_SUPPRESS_DEPRECATION_WARNINGS=1",
	}, o.Env...)
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	c.cri = o.CRI
	if err := c.configure(); err != nil {
		return nil, err
	}
	if o.Configure != nil {
		if err := o.Configure(); err != nil {
			return nil, err
		}
	}
	return c, c.Start(ctx)
}

// Start starts the daemon, again if it was stopped, and waits until it answers.
func (c *Containerd) Start(ctx context.Context) error {
	cmd := exec.Command(filepath.Join(c.bin, "containerd"), "--config", c.config)
	cmd.Env = c.env
	var err error
	c.process, err = StartProcess("containerd "+string(c.Version), filepath.Join(c.Dir, "containerd.log"), cmd)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	return eventually(ctx, c.process, func() error {
		// The socket appears before the services do; ctr tells.
		conn, err := net.Dial("unix", c.Socket)
		if err != nil {
			return err
		}
		conn.Close()
		_, err = c.ctr(ctx, "version")
		return err
	})
}

// Process is the daemon that runs now.
func (c *Containerd) Process() *Process { return c.process }

// Restart ends the daemon, leaving its containers alone, and starts it again.
func (c *Containerd) Restart(ctx context.Context) error {
	if err := c.process.Stop(); err != nil {
		return err
	}
	return c.Start(ctx)
}

// Upgrade is Restart with another version in its place, on the same state and with
// the configuration that it would have been started with.
func (c *Containerd) Upgrade(ctx context.Context, paths Paths, v Version) error {
	bin, err := paths.ContainerdBin(v)
	if err != nil {
		return err
	}
	if err := c.process.Stop(); err != nil {
		return err
	}
	c.Version, c.bin, c.env[0] = v, bin, searchPath(paths, bin)
	if err := c.configure(); err != nil {
		return err
	}
	return c.Start(ctx)
}

// searchPath is the environment's PATH of a daemon whose programs are in bin.
func searchPath(paths Paths, bin string) string {
	return "PATH=" + paths.Bin + ":" + bin + ":" + paths.RuncBin() + ":/usr/sbin:/usr/bin:/sbin:/bin"
}

// configure writes the daemon's configuration.
func (c *Containerd) configure() error {
	return os.WriteFile(c.config, []byte(c.configuration()), 0o600)
}

// BundlePath is where containerd keeps the bundle of a running container.
func (c *Containerd) BundlePath(id string) string {
	return filepath.Join(c.Dir, "s", "io.containerd.runtime.v2.task", c.Namespace, id)
}

// configuration keeps the daemon away from everything on the host: no CRI, no NRI
// socket, no /opt, no snapshotter that probes devices. CRI that is wanted all the
// same finds no network there.
func (c *Containerd) configuration() string {
	version := 3
	if strings.HasPrefix(string(c.Version), "1.") {
		version = 2
	}
	disabled, enabled := "", ""
	if c.cri {
		plugin := "io.containerd.cri.v1.runtime"
		if version == 2 {
			plugin = "io.containerd.grpc.v1.cri"
		}
		enabled = fmt.Sprintf("\n[plugins.%q.cni]\n  conf_dir = %q\n  bin_dir = %q\n", plugin, filepath.Join(c.Dir, "cni"), c.Dir)
	} else {
		for _, plugin := range []string{"io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"} {
			disabled += fmt.Sprintf("  %q,\n", plugin)
		}
	}
	return fmt.Sprintf(`version = %d
root = %q
state = %q
temp = %q
disabled_plugins = [
%s  "io.containerd.nri.v1.nri",
  "io.containerd.internal.v1.opt",
  "io.containerd.internal.v1.tracing",
  "io.containerd.tracing.processor.v1.otlp",
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs",
]

[grpc]
  address = %q

[ttrpc]
  address = %q

[debug]
  level = "info"
`, version, filepath.Join(c.Dir, "r"), filepath.Join(c.Dir, "s"), filepath.Join(c.Dir, "t"),
		disabled, c.Socket, c.Socket+".ttrpc") + enabled
}

// shimSocket is where the shim of a container listens: the path that every
// containerd derives from its own address, the namespace and the id.
func (c *Containerd) shimSocket(id string) string {
	sum := sha256.Sum256([]byte(filepath.Join(c.Socket, c.Namespace, id)))
	return fmt.Sprintf("/run/containerd/s/%x", sum)
}

// RemoveShimSocket removes the socket of a shim that is gone, if it is there.
func (c *Containerd) RemoveShimSocket(id string) error {
	if err := os.Remove(c.shimSocket(id)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}

// RemoveAll removes every container that was started here.
func (c *Containerd) RemoveAll(ctx context.Context) error {
	var errs []error
	for _, container := range c.launched() {
		errs = append(errs, container.Remove(ctx))
	}
	return errors.Join(errs...)
}

func (c *Containerd) launched() []*Container {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.containers)
}

// close removes all containers, then stops the daemon.
func (c *Containerd) close(ctx context.Context) error {
	var errs []error
	select {
	case <-c.process.Done(): // nothing can be removed without it
	default:
		errs = append(errs, c.RemoveAll(ctx))
	}
	errs = append(errs, c.process.Stop())
	for _, container := range c.launched() {
		// The stock manager leaves the socket of a shim that was killed.
		_ = os.Remove(container.daemon.shimSocket(container.ID))
	}
	return errors.Join(errs...)
}
