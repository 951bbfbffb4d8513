// SPDX-License-Identifier: Apache-2.0

package harness

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Runtimes by name.
const (
	VGPURuntime = "io.containerd.vgpu.v1"
	RuncRuntime = "io.containerd.runc.v2"
)

// CommandError is a command of ctr that failed.
type CommandError struct {
	Args   []string
	Output string // stdout and stderr together
	Err    error
}

func (e *CommandError) Error() string {
	return fmt.Sprintf("ctr %s: %v: %s", strings.Join(e.Args, " "), e.Err, strings.TrimSpace(e.Output))
}

func (e *CommandError) Unwrap() error { return e.Err }

// ExitCode of the command, or -1 if it did not exit by itself.
func (e *CommandError) ExitCode() int {
	var exit *exec.ExitError
	if errors.As(e.Err, &exit) {
		return exit.ExitCode()
	}
	return -1
}

// CtrCommand is "ctr ARGS" of this daemon's version, on this daemon. Safe for
// concurrent use.
func (c *Containerd) CtrCommand(ctx context.Context, args ...string) *exec.Cmd {
	return c.command(ctx, c.bin, args...)
}

func (c *Containerd) command(ctx context.Context, bin string, args ...string) *exec.Cmd {
	all := append([]string{"--address", c.Socket, "--namespace", c.Namespace}, args...)
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "ctr"), all...)
	cmd.Env = c.env
	// A killed ctr may leave a child with its pipes.
	cmd.WaitDelay = time.Second
	return cmd
}

// ctr runs a command to its end and returns its stdout and stderr together.
// Safe for concurrent use.
func (c *Containerd) ctr(ctx context.Context, args ...string) (string, error) {
	return c.ctrOf(ctx, c.bin, args...)
}

func (c *Containerd) ctrOf(ctx context.Context, bin string, args ...string) (string, error) {
	out, err := c.command(ctx, bin, args...).CombinedOutput()
	if err != nil {
		return string(out), &CommandError{Args: args, Output: string(out), Err: err}
	}
	return string(out), nil
}
