// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Spec is a container to start.
type Spec struct {
	ID          string
	Namespace   string // of containerd; the daemon's if empty
	Rootfs      string // directory, used as it is
	Image       string // instead of Rootfs: one that was imported
	Args        []string
	Runtime     string // the daemon's default if empty
	Annotations map[string]string
	Env         []string
	Mounts      []string // as for ctr run --mount
	ReadOnly    bool
	User        string   // uid:gid; root if empty
	Extra       []string // more flags of ctr run
}

// RunArgs are the arguments of ctr that start the container, given the flags
// that say how ctr itself behaves (such as --rm).
func (c *Containerd) RunArgs(s Spec, flags ...string) []string {
	return append(append([]string{"run"}, flags...), c.specArgs(s)...)
}

// specArgs are those of ctr run and ctr container create that say what is made.
func (c *Containerd) specArgs(s Spec) (args []string) {
	runtime := s.Runtime
	if runtime == "" {
		runtime = c.Runtime
	}
	args = append(args, "--runtime", runtime)
	for _, key := range slices.Sorted(maps.Keys(s.Annotations)) {
		args = append(args, "--annotation", key+"="+s.Annotations[key])
	}
	if len(s.Args) > 0 && !filepath.IsAbs(s.Args[0]) {
		// ctr gives a container without an image no search path.
		args = append(args, "--env", "PATH=/vgpu:/usr/sbin:/usr/bin:/sbin:/bin")
	}
	for _, env := range s.Env {
		args = append(args, "--env", env)
	}
	for _, mount := range s.Mounts {
		args = append(args, "--mount", mount)
	}
	if s.ReadOnly {
		args = append(args, "--read-only")
	}
	if s.User != "" {
		args = append(args, "--user", s.User)
	}
	args = append(args, s.Extra...)
	if s.Image != "" {
		args = append(args, s.Image, s.ID)
	} else {
		args = append(args, "--rootfs", s.Rootfs, s.ID)
	}
	return append(args, s.Args...)
}

// Container is one that was started. It is detached from ctr, so that neither
// containerd nor ctr has to live for it.
type Container struct {
	ID  string
	PID int // of its first process, on the host

	daemon  *Containerd // with the container's namespace
	pidfd   int
	removed bool
}

// Launch starts a container and returns once its first process runs. If that
// fails, the record that ctr leaves of it is removed. Safe for concurrent use.
func (c *Containerd) Launch(ctx context.Context, s Spec) (*Container, error) {
	container := c.note(s)
	daemon := container.daemon
	pidFile := filepath.Join(c.Dir, s.ID+".pid")
	program := c.bin
	if s.User != "" {
		program = c.newest // ctr 1.6 can not choose a user; a newer one can, on every daemon
	}
	_, err := daemon.ctrOf(ctx, program, daemon.RunArgs(s, "--detach", "--log-uri", "file://"+c.outputPath(s.ID), "--pid-file", pidFile)...)
	if err != nil {
		// A context of its own: the one given may be what ended.
		cleanup, cancel := context.WithTimeout(context.Background(), startLimit)
		defer cancel()
		return nil, errors.Join(err, container.Remove(cleanup))
	}
	b, err := os.ReadFile(pidFile)
	if err != nil {
		return nil, err
	}
	if container.PID, err = strconv.Atoi(strings.TrimSpace(string(b))); err != nil {
		return nil, err
	}
	container.pidfd, err = unix.PidfdOpen(container.PID, 0)
	if err != nil && !errors.Is(err, unix.ESRCH) { // ESRCH: it has ended already
		return nil, fmt.Errorf("failed to open process %d of container %s: %w", container.PID, s.ID, err)
	}
	return container, nil
}

// Found is a container that somebody else has started on this daemon, in a
// namespace of theirs. Who started it removes it.
func (c *Containerd) Found(namespace, id string, pid int) (*Container, error) {
	pidfd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return nil, fmt.Errorf("failed to open process %d of container %s: %w", pid, id, err)
	}
	return &Container{ID: id, PID: pid, daemon: c.in(namespace), pidfd: pidfd}, nil
}

// Run starts a container, waits for its end, removes it, and returns its output
// and exit status.
func (c *Containerd) Run(ctx context.Context, s Spec) (output string, status int, err error) {
	container, err := c.Launch(ctx, s)
	if err != nil {
		return "", -1, err
	}
	status, err = container.Wait(ctx)
	return container.Output(), status, errors.Join(err, container.Remove(ctx))
}

// Output is what the container has written so far to stdout and stderr.
func (c *Container) Output() string { return c.daemon.Output(c.ID) }

// Output is what a container has written so far, also one that is gone, or that
// Launch has not returned yet.
func (c *Containerd) Output(id string) string {
	b, err := os.ReadFile(c.outputPath(id))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err.Error()
	}
	return string(b)
}

func (c *Containerd) outputPath(id string) string { return filepath.Join(c.Dir, id+".log") }

// Ended tells whether the first process has ended.
func (c *Container) Ended() bool {
	if c.pidfd < 0 {
		return true
	}
	fds := []unix.PollFd{{Fd: int32(c.pidfd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1
}

// Wait waits for the end of the first process, deletes the task and returns the
// exit status.
func (c *Container) Wait(ctx context.Context) (int, error) {
	err := eventually(ctx, nil, func() error {
		if !c.Ended() {
			return fmt.Errorf("container %s still runs; its output: %s", c.ID, tail(c.daemon.outputPath(c.ID), 20))
		}
		return nil
	})
	if err != nil {
		return -1, err
	}
	// The shim and containerd notice the end a little later.
	limited, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	status := 0
	err = eventually(limited, nil, func() error {
		out, err := c.daemon.ctr(limited, "task", "delete", c.ID)
		if m := exitCode.FindStringSubmatch(out); err == nil && m != nil {
			status, err = strconv.Atoi(m[1])
		}
		return err
	})
	return status, err
}

// exitCode is how ctr tells the exit status of a task that it deletes, if that
// is not 0.
var exitCode = regexp.MustCompile(`non-zero exit code (\d+)`)

// Exec runs a command in the container and returns its output. It is the newest ctr
// that runs it, on every daemon: that of 1.6 does not wait for the output.
func (c *Container) Exec(ctx context.Context, args ...string) (string, error) {
	id := fmt.Sprintf("e%d", time.Now().UnixNano())
	return c.daemon.ctrOf(ctx, c.daemon.newest, append([]string{"task", "exec", "--exec-id", id, c.ID}, args...)...)
}

// Kill sends a signal to the first process of the container, through containerd.
func (c *Container) Kill(ctx context.Context, s syscall.Signal) error {
	_, err := c.daemon.ctr(ctx, "task", "kill", "--signal", strconv.Itoa(int(s)), c.ID)
	return err
}

// Pause freezes the container's processes, through containerd.
func (c *Container) Pause(ctx context.Context) error {
	_, err := c.daemon.ctr(ctx, "task", "pause", c.ID)
	return err
}

// Resume lets them run again.
func (c *Container) Resume(ctx context.Context) error {
	_, err := c.daemon.ctr(ctx, "task", "resume", c.ID)
	return err
}

// TaskState is what containerd says of the container's task, such as RUNNING.
func (c *Container) TaskState(ctx context.Context) (string, error) {
	out, err := c.daemon.ctr(ctx, "task", "list")
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == c.ID {
			return f[2], err
		}
	}
	return "", err
}

// ShimPID finds the container's shim.
func (c *Container) ShimPID() (int, error) { return c.daemon.ShimPID(c.ID) }

// ShimPID finds the shim of a container, also of one that Launch could not
// start, by the command line that containerd gave it.
func (c *Containerd) ShimPID(id string) (int, error) {
	for _, p := range processes() {
		if slices.Contains(p.args, c.Socket) && slices.Contains(p.args, c.Namespace) &&
			slices.Contains(p.args, id) && strings.Contains(p.args[0], "shim") {
			return p.pid, nil
		}
	}
	return 0, fmt.Errorf("no shim of container %s found", id)
}

// Remove removes the container and its task, whatever their state. It succeeds
// if there is nothing to remove.
func (c *Container) Remove(ctx context.Context) error {
	if c.removed {
		return nil
	}
	limited, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	err := eventually(limited, nil, func() error {
		if _, err := c.daemon.ctr(limited, "task", "delete", "--force", c.ID); err != nil && stillThere(err) {
			return err
		}
		if _, err := c.daemon.ctr(limited, "container", "delete", c.ID); err != nil && stillThere(err) {
			return err
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("failed to remove container %s: %w", c.ID, err)
	}
	c.removed = true
	if c.pidfd >= 0 {
		unix.Close(c.pidfd)
		c.pidfd = -1
	}
	return nil
}

// stillThere tells a deletion that failed from one that had nothing to delete.
func stillThere(err error) bool {
	var failed *CommandError
	return !errors.As(err, &failed) || !strings.Contains(failed.Output, "not found")
}
