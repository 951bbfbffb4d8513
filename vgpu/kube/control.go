// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// answerTimeout is for one question to vgpud, which answers from memory.
const answerTimeout = 5 * time.Second

// unreachable says that vgpud gave no answer.
type unreachable struct {
	address string
	cause   error
}

func (e *unreachable) Error() string {
	return fmt.Sprintf("vgpud does not answer on %s of this node (%v): start it there with `systemctl start vgpud`, or look into its log; "+
		"it is tried again by itself", e.address, e.cause)
}

func (e *unreachable) Unwrap() error { return e.cause }

// dial connects to vgpud. It may be restarted at any time, so nothing but the watch
// keeps a connection.
func (d *Driver) dial(ctx context.Context) (*ttrpc.Client, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", d.cfg.Address)
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok {
			err = op.Err
		}
		return nil, &unreachable{d.cfg.Address, err}
	}
	return ttrpc.NewClient(conn), nil
}

// ask puts a question to vgpud.
func (d *Driver) ask(ctx context.Context, question func(context.Context, v1.ControlClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	client, err := d.dial(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	return d.answered(question(ctx, v1.NewControlClient(client)))
}

// answered tells vgpud's own errors from there being no answer.
func (d *Driver) answered(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.Is(err, ttrpc.ErrClosed):
		return &unreachable{d.cfg.Address, err}
	}
	return errgrpc.ToNative(err)
}

func isUnreachable(err error) bool {
	_, ok := errors.AsType[*unreachable](err)
	return ok
}
