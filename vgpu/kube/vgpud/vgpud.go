// SPDX-License-Identifier: Apache-2.0

// Package vgpud asks the node's vgpud, for what speaks to kubelet.
package vgpud

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

// AnswerTimeout is for one question to vgpud, which answers from memory.
const AnswerTimeout = 5 * time.Second

// Unreachable says that vgpud gave no answer.
type Unreachable struct {
	Address string
	Cause   error
}

func (e *Unreachable) Error() string {
	return fmt.Sprintf("vgpud does not answer on %s of this node (%v): start it there with `systemctl start vgpud`, or look into its log; "+
		"it is tried again by itself", e.Address, e.Cause)
}

func (e *Unreachable) Unwrap() error { return e.Cause }

// IsUnreachable says whether vgpud gave no answer.
func IsUnreachable(err error) bool {
	_, ok := errors.AsType[*Unreachable](err)
	return ok
}

// Address is that of vgpud's control socket. vgpud may be restarted at any time, so
// nothing but Follow keeps a connection.
type Address string

// Ask puts a question. The error is vgpud's, of package errdefs, or Unreachable.
func (a Address) Ask(ctx context.Context, question func(context.Context, v1.ControlClient) error) error {
	return a.AskWithin(ctx, AnswerTimeout, question)
}

// AskWithin is Ask with a limit of its own.
func (a Address) AskWithin(ctx context.Context, limit time.Duration, question func(context.Context, v1.ControlClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	client, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	return a.answered(question(ctx, v1.NewControlClient(client)))
}

// Follow tells of the GPUs of one vgpud, at once and when they change, to its end or
// that of ctx. The error says why it ended, and is never nil.
func (a Address) Follow(ctx context.Context, saw func(*v1.InfoResponse, []*v1.GPU)) error {
	client, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	control := v1.NewControlClient(client)
	limited, cancel := context.WithTimeout(ctx, AnswerTimeout)
	defer cancel()
	info, err := control.Info(limited, &v1.InfoRequest{})
	if err != nil {
		return a.answered(err)
	}
	stream, err := control.WatchGPUs(ctx, &v1.WatchGPUsRequest{})
	if err != nil {
		return a.answered(err)
	}
	for {
		list, err := stream.Recv()
		if err != nil {
			return a.answered(err)
		}
		saw(info, list.GetGpus())
	}
}

func (a Address) dial(ctx context.Context) (*ttrpc.Client, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "unix", string(a))
	if err != nil {
		if op, ok := errors.AsType[*net.OpError](err); ok {
			err = op.Err
		}
		return nil, &Unreachable{string(a), err}
	}
	return ttrpc.NewClient(conn), nil
}

// answered tells vgpud's own errors from there being no answer.
func (a Address) answered(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled), errors.Is(err, ttrpc.ErrClosed):
		return &Unreachable{string(a), err}
	}
	return errgrpc.ToNative(err)
}
