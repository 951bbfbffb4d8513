// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"

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
func (a *app) ask(ctx context.Context, what string, question func(context.Context, v1.ControlClient) error) error {
	ctx, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	client, err := a.dial(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	if err := question(ctx, v1.NewControlClient(client)); err != nil {
		return a.failed(what, err)
	}
	return nil
}

func (a *app) dial(ctx context.Context) (*ttrpc.Client, error) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", a.address)
	switch {
	case errors.Is(err, os.ErrNotExist), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOTDIR):
		var sys syscall.Errno
		errors.As(err, &sys)
		return nil, notRunning{address: a.address, cause: sys}
	case errors.Is(err, syscall.EAGAIN):
		return nil, silent{address: a.address, cause: "too many connections wait for it"}
	case errors.Is(err, os.ErrPermission):
		return nil, fmt.Errorf("only root may use vgpud's control socket %s: %w", a.address, err)
	case err != nil:
		return nil, fmt.Errorf("failed to reach vgpud: %w", err)
	}
	return ttrpc.NewClient(conn), nil
}

// redialInterval is between two tries to reach a vgpud that went away.
const redialInterval = 200 * time.Millisecond

// follow reads a stream until it fails, says errDone, or ctx is done, which is
// no failure. Where vgpud goes away, it is waited for, and stream called again;
// the first time it must be there. info is of the vgpud at hand.
func (a *app) follow(ctx context.Context, stderr io.Writer, what string, stream func(ctx context.Context, c v1.ControlClient, info *v1.InfoResponse) error) error {
	away, been := false, false
	for {
		err := a.attach(ctx, func(ctx context.Context, c v1.ControlClient, info *v1.InfoResponse) error {
			if away {
				fmt.Fprintln(stderr, "vgpu: vgpud is back")
			}
			away, been = false, true
			return stream(ctx, c, info)
		})
		var absent notRunning
		var mute silent
		var own ownError
		switch {
		case errors.Is(err, errDone), ctx.Err() != nil:
			return nil
		case errors.As(err, &own):
			if errors.Is(err, syscall.EPIPE) { // the reader has seen enough
				return nil
			}
			return own.error
		case been && errors.Is(err, ttrpc.ErrStreamFull):
			// Whoever reads the output was too slow. What is missing is still
			// there: vgpud keeps it.
			continue
		case !been || !errors.As(err, &absent) && !errors.As(err, &mute) && !errors.Is(err, ttrpc.ErrClosed) && !errdefs.IsUnavailable(errgrpc.ToNative(err)):
			return a.failed(what, err)
		}
		if !away {
			away = true
			fmt.Fprintln(stderr, "vgpu: vgpud went away; waiting for it")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(redialInterval):
		}
	}
}

// untilClosed is done when ctx is, or when whoever reads w has ended: a pipe is
// not written to before the next event.
func untilClosed(ctx context.Context, w io.Writer) context.Context {
	f, ok := w.(*os.File)
	if !ok {
		return ctx
	}
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		// Without a wish, poll(2) returns for POLLERR and POLLHUP alone: the other
		// end of the pipe, or the terminal, is closed.
		fds := []unix.PollFd{{Fd: int32(f.Fd())}} //nolint:gosec // G115: a descriptor is a small number
		for {
			if _, err := unix.Poll(fds, -1); !errors.Is(err, unix.EINTR) {
				cancel()
				return
			}
		}
	}()
	return ctx
}

// errDone ends follow without a failure.
var errDone = errors.New("done")

// ownError is a failure of what is done with a stream, not of the stream.
type ownError struct{ error }

func (e ownError) Unwrap() error { return e.error }

// attach connects for one stream. The time limit is for vgpud to answer at all.
func (a *app) attach(ctx context.Context, stream func(context.Context, v1.ControlClient, *v1.InfoResponse) error) error {
	limit, cancel := context.WithTimeout(ctx, a.timeout)
	defer cancel()
	client, err := a.dial(limit)
	if err != nil {
		return err
	}
	defer client.Close()
	c := v1.NewControlClient(client)
	info, err := c.Info(limit, &v1.InfoRequest{})
	if errors.Is(err, context.DeadlineExceeded) {
		return silent{address: a.address, cause: fmt.Sprintf("no answer within %v", a.timeout)}
	}
	if err != nil {
		return err
	}
	return stream(ctx, c, info)
}

// failed puts what was tried before what vgpud answered.
func (a *app) failed(what string, err error) error {
	var (
		absent notRunning
		mute   silent
	)
	if errors.As(err, &absent) || errors.As(err, &mute) {
		return err // says it all
	}
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
