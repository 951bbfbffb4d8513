// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// control is a connection to vgpud for one call or two. The shim keeps none
// open: vgpud may be restarted at any time.
type control struct {
	v1.ControlClient
	client *ttrpc.Client
}

func (c *control) close() { c.client.Close() }

// redialInterval is the pause between two tries to connect.
const redialInterval = 25 * time.Millisecond

// dial connects to vgpud's control socket. For as long as patience, and ctx
// allow, it tries again if nobody listens there, or if the queue of a vgpud
// that is busy or stopped is full. An error says what to do about vgpud.
func dial(ctx context.Context, address string, patience time.Duration) (*control, error) {
	patient, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var d net.Dialer
	for {
		// The try itself is bound by ctx alone, so that it is made even
		// without patience. It never waits: the socket is a local one.
		conn, err := d.DialContext(ctx, "unix", address)
		if err == nil {
			client := ttrpc.NewClient(conn)
			return &control{v1.NewControlClient(client), client}, nil
		}
		if ended := ctx.Err(); ended != nil {
			return nil, fmt.Errorf("failed to connect to vgpud on %s: %w", address, ended)
		}
		if !errors.Is(err, syscall.ECONNREFUSED) && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, syscall.EAGAIN) {
			return nil, unreachable(address, err)
		}
		if !pause(patient, redialInterval) {
			return nil, unreachable(address, err)
		}
	}
}

// ask puts a question of a Create to vgpud. If vgpud ends before it has answered, its
// successor is asked the same, until limited ends. what is tried stands in the error;
// asked tells whether there was a vgpud to ask.
func (s *service) ask(ctx, limited context.Context, what, address string, question func(v1.ControlClient) error) (asked bool, _ error) {
	for ; ; asked = true {
		c, err := dial(ctx, address, s.dialPatience)
		if err != nil {
			return asked, fmt.Errorf("failed to %s: %w", what, err)
		}
		err = question(c)
		c.close()
		if err == nil {
			return true, nil
		}
		if !stopped(err) || !pause(limited, redialInterval) {
			return true, failed(what, address, err)
		}
	}
}

// stopped tells whether a call failed because vgpud was about to end: it was not
// read, not answered, or refused for that reason.
func stopped(err error) bool {
	return errors.Is(err, ttrpc.ErrClosed) || errdefs.IsUnavailable(errgrpc.ToNative(err))
}

// pause waits so long, unless ctx ends first.
func pause(ctx context.Context, long time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(long):
		return true
	}
}

// unreachable makes the failure to get an answer an error that says what to do.
func unreachable(address string, err error) error {
	// The address is named once, not by net.OpError again.
	if op, ok := errors.AsType[*net.OpError](err); ok {
		err = op.Err
	}
	if sys, ok := errors.AsType[*os.SyscallError](err); ok {
		err = sys.Err
	}
	switch {
	case errors.Is(err, fs.ErrPermission):
		return coded(fmt.Errorf("failed to connect to vgpud on %s, which serves root alone: %w", address, err), errdefs.ErrPermissionDenied)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.EAGAIN):
		return coded(fmt.Errorf("vgpud runs but does not answer on %s (%w); see its log, or restart it with `systemctl restart vgpud`",
			address, err), errdefs.ErrUnavailable)
	}
	return coded(fmt.Errorf("vgpud does not answer on %s (%w); start it with `vgpud` or `systemctl start vgpud`",
		address, err), errdefs.ErrUnavailable)
}

// failed makes an error of a call of vgpud one that keeps its code and says
// what was tried. The caller's own end is none of the errors: no call of vgpud
// hangs on it.
func failed(what, address string, err error) error {
	// Errors of our own side are no answer of vgpud's.
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, ttrpc.ErrClosed) {
		err = errgrpc.ToNative(err)
	}
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, ttrpc.ErrClosed) {
		err = unreachable(address, err)
	}
	return fmt.Errorf("failed to %s: %w", what, err)
}
