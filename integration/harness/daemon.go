// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/ttrpc"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// Daemon is a private vgpud.
type Daemon struct {
	Dir     string // of configuration and log
	State   string // its state directory
	Socket  string // of its control API
	GPUs    string // what --gpus was given
	Machine string // directory of the simulated GPUs
	Metrics string // socket on which it serves metrics

	paths   Paths
	library string
	env     []string
	process *Process
}

// DaemonOptions are what differs between private daemons.
type DaemonOptions struct {
	Dir     string
	GPUs    string        // as for vgpud --gpus; "sim:1" if empty
	Library string        // the take-over library; the built one if empty
	Quantum time.Duration // the daemon's default if zero
	Drain   time.Duration // deadline of a drain; the daemon's default if zero
	Engine  string        // more lines of the configuration's [engine]
	// ContextMemory is what a context costs on the simulated GPUs; as much as the
	// simulator chooses if empty.
	ContextMemory string
	// Model and Memory are the simulated GPUs', as for simgpu create; the
	// simulator's own if empty.
	Model, Memory string
	// SwapRate is how many bytes of managed memory move in a second on the simulated
	// GPUs; they do not if empty.
	SwapRate string
	// OpenCLCPU lets an OpenCL device that is a CPU stand for a simulated GPU.
	OpenCLCPU bool
	// LogLevel is "info" if empty. Turns needs "trace".
	LogLevel string
	Env      []string // more of its environment
}

// StartDaemon starts a vgpud and waits until it answers.
func StartDaemon(ctx context.Context, paths Paths, o DaemonOptions) (*Daemon, error) {
	d := &Daemon{
		Dir:     o.Dir,
		State:   filepath.Join(o.Dir, "s"),
		Socket:  filepath.Join(o.Dir, "s", "vgpud.sock"),
		Machine: filepath.Join(o.Dir, "sim"),
		Metrics: filepath.Join(o.Dir, "metrics.sock"),
		GPUs:    o.GPUs,
		paths:   paths,
		library: o.Library,
		env:     o.Env,
	}
	if d.GPUs == "" {
		d.GPUs = "sim:1"
	}
	if d.library == "" {
		d.library = paths.Library
	}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	config := fmt.Sprintf(`version = 1
gpus = %q
state = %q
socket = %q
metrics = %q

[library]
cuda = %q
nvml = %q
opencl = %q
musl = %q

[simulated]
root = %q
machine = %q
opencl_cpu = %t

[log]
level = %q
format = "json"
`, d.GPUs, d.State, d.Socket, d.Metrics, d.library, paths.NVML, paths.OpenCL, filepath.Join(paths.Musl, "lib"), paths.Simulated, d.Machine, o.OpenCLCPU, cmp.Or(o.LogLevel, "info"))
	config += "\n[engine]\n"
	if o.Quantum > 0 {
		config += fmt.Sprintf("quantum = %q\n", o.Quantum)
	}
	if o.Drain > 0 {
		config += fmt.Sprintf("drain_deadline = %q\n", o.Drain)
	}
	config += o.Engine
	if err := os.WriteFile(d.configPath(), []byte(config), 0o600); err != nil {
		return nil, err
	}
	if machine := o.machine(); len(machine) > 0 {
		args := append([]string{"create", "--gpus", strings.TrimPrefix(d.GPUs, "sim:")}, machine...)
		if _, err := d.simgpu(ctx, append(args, d.Machine)...); err != nil {
			return nil, err
		}
	}
	return d, d.Start(ctx)
}

// machine is how the simulated GPUs differ from those that vgpud makes by itself.
func (o DaemonOptions) machine() (flags []string) {
	for _, f := range []struct{ flag, value string }{
		{"--context-memory", o.ContextMemory},
		{"--model", o.Model},
		{"--memory", o.Memory},
		{"--swap-rate", o.SwapRate},
	} {
		if f.value != "" {
			flags = append(flags, f.flag, f.value)
		}
	}
	return flags
}

// Start starts the daemon, again if it was stopped, and waits until it answers.
func (d *Daemon) Start(ctx context.Context) error {
	cmd := exec.Command(filepath.Join(d.paths.Bin, "vgpud"), "--config", d.configPath())
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + d.Dir, "TMPDIR=" + d.Dir}
	cmd.Env = append(cmd.Env, d.env...)
	var err error
	d.process, err = StartProcess("vgpud", filepath.Join(d.Dir, "vgpud.log"), cmd)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	return eventually(ctx, d.process, func() error {
		return d.Control(func(c v1.ControlClient) error {
			_, err := c.Info(ctx, &v1.InfoRequest{})
			return err
		})
	})
}

// Process is the daemon that runs now.
func (d *Daemon) Process() *Process { return d.process }

// Messages is what the daemon has logged so far.
func (d *Daemon) Messages() string {
	b, err := os.ReadFile(filepath.Join(d.Dir, "vgpud.log"))
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// Control calls f with a client of the control API. Safe for concurrent use.
func (d *Daemon) Control(f func(v1.ControlClient) error) error {
	conn, err := net.Dial("unix", d.Socket)
	if err != nil {
		return err
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	return f(v1.NewControlClient(client))
}

// VGPUs asks the daemon for its vGPUs. Safe for concurrent use.
func (d *Daemon) VGPUs(ctx context.Context) ([]*v1.VGPU, error) {
	var list *v1.ListResponse
	err := d.Control(func(c v1.ControlClient) (err error) {
		list, err = c.List(ctx, &v1.ListRequest{})
		return err
	})
	return list.GetVgpus(), err
}

// PhysicalGPUs asks the daemon for its GPUs. Safe for concurrent use.
func (d *Daemon) PhysicalGPUs(ctx context.Context) ([]*v1.GPU, error) {
	var list *v1.ListGPUsResponse
	err := d.Control(func(c v1.ControlClient) (err error) {
		list, err = c.ListGPUs(ctx, &v1.ListGPUsRequest{})
		return err
	})
	return list.GetGpus(), err
}

// CLI runs the operator's command line on this daemon and returns its stdout.
func (d *Daemon) CLI(ctx context.Context, args ...string) (string, error) {
	cmd := d.cli(ctx, args...)
	out, err := cmd.Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = fmt.Errorf("vgpu %s: %w: %s", strings.Join(args, " "), err, exit.Stderr)
	}
	return string(out), err
}

// Follow starts a command of the operator's command line that goes on by itself.
// What it writes is in the Process's log, which is named after name.
func (d *Daemon) Follow(name string, args ...string) (*Process, error) {
	cmd := d.cli(context.Background(), args...)
	return StartProcess("vgpu "+strings.Join(args, " "), filepath.Join(d.Dir, name+".log"), cmd)
}

func (d *Daemon) cli(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, filepath.Join(d.paths.Bin, "vgpu"), append([]string{"--address", d.Socket}, args...)...)
}

// ShimConfig writes the handler configuration that points shims at this daemon,
// with more lines of it, and returns its path. A shim reads it for each container.
func (d *Daemon) ShimConfig(more ...string) (string, error) {
	path := filepath.Join(d.Dir, "shim.toml")
	text := fmt.Sprintf("version = 1\naddress = %q\n%s\n", d.Socket, strings.Join(more, "\n"))
	return path, os.WriteFile(path, []byte(text), 0o600)
}

func (d *Daemon) configPath() string { return filepath.Join(d.Dir, "vgpud.toml") }
