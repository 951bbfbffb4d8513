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

// timeout is for one question to vgpud, which answers from memory.
const timeout = 10 * time.Second

// notRunning says that nobody answers at an address.
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

func dial(ctx context.Context, address string) (v1.ControlService, func(), error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", address)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOTDIR):
		var sys syscall.Errno
		errors.As(err, &sys)
		return nil, nil, notRunning{address: address, cause: sys}
	case errors.Is(err, os.ErrPermission):
		return nil, nil, fmt.Errorf("only root may use vgpud's control socket %s: %w", address, err)
	case err != nil:
		return nil, nil, fmt.Errorf("failed to reach vgpud: %w", err)
	}
	client := ttrpc.NewClient(conn)
	return v1.NewControlClient(client), func() { client.Close() }, nil
}

// failed puts what was tried before what vgpud answered.
func failed(what string, err error) error {
	err = errgrpc.ToNative(err)
	if errors.Is(err, ttrpc.ErrClosed) || errdefs.IsUnavailable(err) {
		return fmt.Errorf("failed to %s: vgpud went away, or this user is not root: %w", what, err)
	}
	return fmt.Errorf("failed to %s: %w", what, err)
}
