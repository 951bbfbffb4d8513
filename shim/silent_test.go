// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/shim/bundle"
	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// mute replaces the fixture's vgpud by one that accepts and never answers, and
// returns the number of connections that it got so far.
func (f *fixture) mute() (connections *atomic.Int32) {
	f.t.Helper()
	f.stop()
	l, err := net.Listen("unix", f.address)
	if err != nil {
		f.t.Fatal(err)
	}
	connections = new(atomic.Int32)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			connections.Add(1)
			defer conn.Close()
		}
	}()
	f.stop = func() {
		l.Close()
		<-done
	}
	f.t.Cleanup(f.stop)
	return connections
}

// silent checks that an error speaks of a vgpud that runs.
func silent(t *testing.T, err error) {
	t.Helper()
	if err == nil {
		t.Fatal("succeeded")
	}
	if !errdefs.IsUnavailable(errgrpc.ToNative(err)) {
		t.Errorf("error has another code: %v", err)
	}
	for _, s := range []string{"vgpud runs but does not answer", "vgpud.sock", "see its log", "restart"} {
		if !strings.Contains(err.Error(), s) {
			t.Errorf("error %q does not say %q", err, s)
		}
	}
	if strings.Contains(err.Error(), "systemctl start") {
		t.Errorf("error %q gives the remedy for a vgpud that does not run", err)
	}
}

// The time for a silent vgpud is spent once: the release is not tried in the
// same Create, which would double it, but left to Stop with the state file.
func TestCreateWithASilentVgpud(t *testing.T) {
	f := newFixture(t, plainSpec)
	connections := f.mute()
	f.service.createTimeout, f.service.releaseTimeout = 50*time.Millisecond, 50*time.Millisecond
	silent(t, f.create())
	f.stop()
	if n := connections.Load(); n > 1 {
		t.Errorf("vgpud was tried %d times", n)
	}
	f.called()
	f.files("config.json", "vgpu.json")
	if data, err := os.ReadFile(f.path("config.json")); err != nil || string(data) != f.spec {
		t.Errorf("config.json is %s, %v", data, err)
	}
	if _, ok := f.service.tenant(testID); ok {
		t.Error("the service still thinks that the container has a vGPU")
	}

	state, err := bundle.ReadState(f.bundle)
	if err != nil {
		t.Fatal(err)
	}
	f.vgpud.serve(t, f.address)
	if err := release(f.ctx, f.bundle, time.Minute); err != nil {
		t.Fatal(err)
	}
	f.files("config.json")
	if len(f.vgpud.deleted) != 1 || f.vgpud.deleted[0].GetInstance() != state.Instance {
		t.Errorf("released: %v, want instance %s", f.vgpud.deleted, state.Instance)
	}
}

// vgpud's own report of a deadline is no other thing.
func TestCreateWithAVgpudThatRunsOutOfTime(t *testing.T) {
	f := newFixture(t, plainSpec)
	f.vgpud.create = func(context.Context, *v1.CreateRequest) error { return errgrpc.ToGRPC(context.DeadlineExceeded) }
	silent(t, f.create())
	f.untouched()
}

// A vgpud that is stopped takes no connections once the queue of its socket is
// full.
func TestCreateWithAFullQueueAtVgpud(t *testing.T) {
	f := newFixture(t, plainSpec)
	f.stop()
	full(t, f.address)
	f.service.dialPatience = 50 * time.Millisecond
	silent(t, f.create())
	// Nothing was asked of vgpud.
	f.untouched()
}

// full listens on address and fills the queue.
func full(t *testing.T, address string) {
	t.Helper()
	at := &unix.SockaddrUnix{Name: address}
	socket := func() int {
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	l := socket()
	if err := unix.Bind(l, at); err != nil {
		t.Fatal(err)
	}
	if err := unix.Listen(l, 0); err != nil {
		t.Fatal(err)
	}
	for range 100 {
		switch err := unix.Connect(socket(), at); {
		case errors.Is(err, unix.EAGAIN):
			return
		case err != nil:
			t.Fatal(err)
		}
	}
	t.Fatal("the queue never fills")
}

// The client gives up while vgpud is slow. A release sent at once could
// overtake the Create inside vgpud, find nothing, and leave the vGPU that is
// made afterwards to nobody.
func TestReleaseDoesNotOvertakeASlowCreate(t *testing.T) {
	f := newFixture(t, plainSpec)
	ctx, cancel := context.WithCancel(f.ctx)
	f.ctx = ctx
	overtaken := make(chan struct{})
	var answered atomic.Bool
	f.vgpud.create = func(context.Context, *v1.CreateRequest) error {
		cancel()
		// Nothing tells of a release that does not come: a while is given to one
		// that does. A slow machine can hide the mistake, not invent it.
		select {
		case <-overtaken:
		case <-time.After(100 * time.Millisecond):
		}
		answered.Store(true)
		return nil
	}
	f.vgpud.delete = func(context.Context, *v1.DeleteRequest) error {
		if !answered.Load() {
			t.Error("the release overtook the Create")
			close(overtaken)
		}
		return nil
	}
	if err := f.create(); !errdefs.IsCanceled(errgrpc.ToNative(err)) {
		t.Errorf("error is %v", err)
	}
	f.called()
	f.untouched()
}

// containerd removes the bundle of a container that a client gave up on, also
// while Create still waits for vgpud.
func TestCreateReleasesAlthoughItsBundleIsGone(t *testing.T) {
	f := newFixture(t, plainSpec)
	f.vgpud.create = func(context.Context, *v1.CreateRequest) error { return os.RemoveAll(f.bundle) }
	if err := f.create(); err == nil {
		t.Fatal("succeeded")
	}
	f.called()
	f.vgpus(0)
	if _, err := os.Stat(filepath.Dir(f.path("vgpu.json"))); err == nil {
		t.Error("the bundle is back")
	}
}

func TestCreateForACallerWhoHasGoneAsksNothingOfVgpud(t *testing.T) {
	f := newFixture(t, plainSpec)
	ctx, cancel := context.WithCancel(f.ctx)
	cancel()
	f.ctx = ctx
	err := f.create()
	if !errdefs.IsCanceled(errgrpc.ToNative(err)) || strings.Contains(err.Error(), "systemctl") {
		t.Errorf("error is %v", err)
	}
	if len(f.vgpud.created) != 0 {
		t.Error("vgpud was asked")
	}
	f.untouched()
}
