// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// defaultTimeout is for one question to vgpud, which answers from memory.
const defaultTimeout = 5 * time.Second

// notRunning says that nobody listens at an address.
type notRunning struct {
	address string
	cause   error
}

func (e notRunning) Error() string {
	return fmt.Sprintf("vgpud does not run: nobody answers at %s (%v)\n"+
		"Start it with \"systemctl start vgpud\", or run \"vgpud\" as root; without a GPU, \"vgpud --gpus=sim:1\".\n"+
		"If it listens elsewhere, say so with --address.", e.address, e.cause)
}

func (e notRunning) Unwrap() error { return e.cause }

// silent says that somebody listens at an address, and no answer came.
type silent struct {
	address string
	cause   string
}

func (e silent) Error() string {
	return fmt.Sprintf("vgpud runs but does not answer at %s (%s)\n"+
		"See its log (\"journalctl -u vgpud\"), or restart it with \"systemctl restart vgpud\": containers go on meanwhile.",
		e.address, e.cause)
}

// ask puts a question to vgpud. The time limit is for connecting and for the
// answer together. what says what is tried, for the error.
func (a *app) ask(ctx context.Context, what string, question func(context.Context, v1.ControlService) error) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", a.address)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOTDIR):
		var sys syscall.Errno
		errors.As(err, &sys)
		return notRunning{address: a.address, cause: sys}
	case errors.Is(err, syscall.EAGAIN):
		return silent{address: a.address, cause: "too many connections wait for it"}
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("only root may use vgpud's control socket %s: %w", a.address, err)
	case err != nil:
		return fmt.Errorf("failed to reach vgpud: %w", err)
	}
	client := ttrpc.NewClient(conn)
	defer client.Close()
	if err := question(ctx, v1.NewControlClient(client)); err != nil {
		return a.failed(what, err)
	}
	return nil
}

// failed puts what was tried before what vgpud answered.
func (a *app) failed(what string, err error) error {
	if !errors.Is(err, context.DeadlineExceeded) {
		err = errgrpc.ToNative(err)
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return silent{address: a.address, cause: fmt.Sprintf("no answer within %v", a.timeout)}
	case errors.Is(err, ttrpc.ErrClosed), errdefs.IsUnavailable(err):
		return fmt.Errorf("failed to %s: vgpud went away, or this user is not root: %w", what, err)
	}
	return fmt.Errorf("failed to %s: %w", what, err)
}
