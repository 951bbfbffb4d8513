// SPDX-License-Identifier: Apache-2.0

package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/integration/harness"
	"github.com/vgpu-shim/vgpu/integration/harness/harnesstest"
)

// one is a node and one container of it, with calls of which something happens in
// the middle.
type one struct {
	*node
	c     *harness.Container
	model *harness.Container // of which it is a copy
	made  *int               // such copies
	api   *harness.API
	runc  *harness.Runc
}

// Whatever dies, gives up or gets full in the middle of a call: what was made goes,
// whoever has to see to it, and the next container has its vGPU.
func TestInterrupted(t *testing.T) {
	t.Parallel()
	harnesstest.Versions(t, func(t *testing.T, v harness.Version) {
		o := theOne(t, v)
		t.Run("shim killed", o.shimKilled)
		t.Run("create cancelled", o.createCancelled)
		t.Run("vgpud dead during", o.daemonDead)
		t.Run("vgpud killed while it is asked", o.daemonKilled)
		t.Run("full disk", o.fullDisk)
		o.another(t).whole()
	})
}

// theOne starts a node for it, without the container.
func theOne(t *testing.T, v harness.Version) *one {
	t.Helper()
	o := &one{node: start(t, harness.Options{Version: v}), made: new(int)}
	var err error
	if o.runc, err = o.Runc(); err != nil {
		t.Fatal(err)
	}
	if o.api, err = o.Containerd.API(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { o.api.Close() })
	if o.model, err = o.Containerd.Define(o.Ctx, harness.Spec{ID: "one", Rootfs: rootfs, Args: []string{"sleep", "1000"}}); err != nil {
		t.Fatal(err)
	}
	return o
}

// another is another container of the node. containerd may still clean up after one
// whose Create failed when a client has heard of it, and would take the bundle of
// the next with the same id.
func (o *one) another(t *testing.T) *one {
	t.Helper()
	*o.made++
	c, err := o.api.Copy(o.Ctx, o.model, fmt.Sprintf("copy-%d", *o.made))
	if err != nil {
		t.Fatal(err)
	}
	sub := *o
	sub.node, sub.c = &node{o.node.Sub(t)}, c
	return &sub
}

func (o *one) create(ctx context.Context) error {
	_, err := o.api.Tasks.Create(o.Containerd.Context(ctx), &tasks.CreateTaskRequest{ContainerID: o.c.ID})
	return errgrpc.ToNative(err)
}

func (o *one) start(ctx context.Context) error {
	_, err := o.api.Tasks.Start(o.Containerd.Context(ctx), &tasks.StartRequest{ContainerID: o.c.ID})
	return errgrpc.ToNative(err)
}

// exec runs a program to its end, which fails anywhere else. Its output says nothing
// more: ctr 1.6 may lose that of one which ends at once, on a machine that is busy.
func (o *one) exec(ctx context.Context) error {
	_, err := o.c.Exec(ctx, "sh", "-c", "test -d /.vgpu")
	return err
}

// kill ends the first process, and waits for that.
func (o *one) kill(ctx context.Context) error {
	ctx = o.Containerd.Context(ctx)
	if _, err := o.api.Tasks.Kill(ctx, &tasks.KillRequest{ContainerID: o.c.ID, Signal: uint32(syscall.SIGKILL)}); err != nil {
		return errgrpc.ToNative(err)
	}
	_, err := o.api.Tasks.Wait(ctx, &tasks.WaitRequest{ContainerID: o.c.ID})
	return errgrpc.ToNative(err)
}

func (o *one) delete(ctx context.Context) error {
	_, err := o.api.Tasks.Delete(o.Containerd.Context(ctx), &tasks.DeleteTaskRequest{ContainerID: o.c.ID})
	return errgrpc.ToNative(err)
}

// must makes calls that succeed.
func (o *one) must(calls ...func(context.Context) error) {
	o.T.Helper()
	for _, call := range calls {
		if err := call(o.Ctx); err != nil {
			o.T.Fatal(err)
		}
	}
}

// nothing ends what may be left of the task, removes the container, and fails the test if anything stays.
func (o *one) nothing() {
	o.T.Helper()
	o.Wait(func() error {
		err := o.delete(o.Ctx)
		if errdefs.IsNotFound(err) {
			return nil
		}
		if errdefs.IsFailedPrecondition(err) { // its end has not been noticed yet
			_ = o.kill(o.Ctx)
		}
		return errors.Join(err, errNotYet)
	})
	if err := o.CheckLeaks(o.Ctx); err != nil {
		o.T.Error(err)
	}
	o.must(func(ctx context.Context) error { return o.api.Remove(ctx, o.c) })
}

// whole is a life without a fault. What is wrong with the node shows in it.
func (o *one) whole() {
	o.T.Helper()
	o.must(o.create, o.start)
	if v, err := o.VGPU(o.c.ID); err != nil || v.GetState() == "" {
		o.T.Errorf("%v, %v", v, err)
	}
	o.must(o.exec, o.kill, o.delete)
	o.nothing()
}

// during makes a call that is still under way when it returns: runc stands at a
// point of it. wait is for its end, after the hold was released.
func (o *one) during(ctx context.Context, point string, call func(context.Context) error) (wait func() error, release func()) {
	o.T.Helper()
	h, err := o.runc.Hold(point)
	if err != nil {
		o.T.Fatal(err)
	}
	wait = o.background(ctx, call)
	release = func() {
		if err := h.Release(); err != nil {
			o.T.Error(err)
		}
	}
	o.T.Cleanup(release)
	limited, cancel := context.WithTimeout(o.Ctx, patience)
	defer cancel()
	if err := h.Reached(limited); err != nil {
		o.T.Fatal(err)
	}
	return wait, release
}

// asking makes a Create that stands still because vgpud does, once vgpud has been
// asked.
func (o *one) asking(ctx context.Context) (wait func() error, release func()) {
	o.T.Helper()
	if err := o.Daemon.Process().Signal(syscall.SIGSTOP); err != nil {
		o.T.Fatal(err)
	}
	release = func() { _ = o.Daemon.Process().Signal(syscall.SIGCONT) }
	o.T.Cleanup(release)
	wait = o.background(ctx, o.create)
	o.Wait(func() error {
		_, err := os.Stat(filepath.Join(o.Containerd.BundlePath(o.c.ID), "vgpu.json"))
		return err
	})
	return wait, release
}

func (o *one) background(ctx context.Context, call func(context.Context) error) (wait func() error) {
	ended := make(chan error, 1)
	go func() { ended <- call(ctx) }()
	return func() error {
		o.T.Helper()
		limited, cancel := context.WithTimeout(o.Ctx, patience)
		defer cancel()
		select {
		case err := <-ended:
			return err
		case <-limited.Done():
			o.T.Fatal("the call does not end")
			return nil
		}
	}
}

// asked is where asking stands still.
const asked = "vgpud is asked"

// gone waits until containerd has removed the bundle.
func (o *one) gone() {
	o.T.Helper()
	o.Wait(func() error {
		if _, err := os.Stat(o.Containerd.BundlePath(o.c.ID)); !errors.Is(err, os.ErrNotExist) {
			return fmt.Errorf("the bundle is still there: %w", errors.Join(err, errNotYet))
		}
		return nil
	})
}

// The shim killed at every point of a container's life: the call that was under
// way fails, and what the container had goes, whoever has to see to it.
func (o *one) shimKilled(t *testing.T) {
	for _, phase := range []struct {
		description string
		reach       func(*one) (wait func() error, release func())
	}{
		{asked, func(o *one) (func() error, func()) { return o.asking(o.Ctx) }},
		{"before runc create", func(o *one) (func() error, func()) { return o.during(o.Ctx, "before create", o.create) }},
		{"after runc create", func(o *one) (func() error, func()) { return o.during(o.Ctx, "after create", o.create) }},
		{"created", func(o *one) (func() error, func()) {
			o.must(o.create)
			return nil, nil
		}},
		{"before runc start", func(o *one) (func() error, func()) {
			o.must(o.create)
			return o.during(o.Ctx, "before start", o.start)
		}},
		{"running", func(o *one) (func() error, func()) {
			o.must(o.create, o.start)
			return nil, nil
		}},
		{"before runc exec", func(o *one) (func() error, func()) {
			o.must(o.create, o.start)
			return o.during(o.Ctx, "before exec", o.exec)
		}},
		{"before runc kill", func(o *one) (func() error, func()) {
			o.must(o.create, o.start)
			return o.during(o.Ctx, "before kill", o.kill)
		}},
		{"ended", func(o *one) (func() error, func()) {
			o.must(o.create, o.start, o.kill)
			return nil, nil
		}},
		{"before runc delete", func(o *one) (func() error, func()) {
			o.must(o.create, o.start, o.kill)
			return o.during(o.Ctx, "before delete", o.delete)
		}},
		{"after runc delete", func(o *one) (func() error, func()) {
			o.must(o.create, o.start, o.kill)
			return o.during(o.Ctx, "after delete", o.delete)
		}},
	} {
		t.Run(phase.description, func(t *testing.T) {
			o := o.another(t)
			wait, release := phase.reach(o)
			shim, err := o.c.ShimPID()
			if err != nil {
				t.Fatal(err)
			}
			if err := syscall.Kill(shim, syscall.SIGKILL); err != nil {
				t.Fatal(err)
			}
			if release != nil && phase.description != asked {
				release() // containerd's cleanup calls runc, too
			}
			if wait != nil {
				if err := wait(); err == nil {
					t.Error("the call succeeded without a shim")
				}
			}
			o.gone()
			if phase.description == asked {
				release() // vgpud is back when all else is gone
			}
			o.nothing()
		})
	}
}

// A client that gives up in the middle of Create gets its answer at once; what the
// shim, runc and vgpud still do for it is undone.
func (o *one) createCancelled(t *testing.T) {
	for _, phase := range []struct {
		description string
		reach       func(*one, context.Context) (wait func() error, release func())
	}{
		{asked, (*one).asking},
		{"before runc create", func(o *one, ctx context.Context) (func() error, func()) {
			return o.during(ctx, "before create", o.create)
		}},
		{"after runc create", func(o *one, ctx context.Context) (func() error, func()) {
			return o.during(ctx, "after create", o.create)
		}},
	} {
		t.Run(phase.description, func(t *testing.T) {
			o := o.another(t)
			ctx, cancel := context.WithCancel(o.Ctx)
			defer cancel()
			wait, release := phase.reach(o, ctx)
			cancel()
			if err := wait(); !errdefs.IsCanceled(err) {
				t.Errorf("the call ended with %v", err)
			}
			release()
			o.gone()
			o.nothing()
		})
	}
}

// vgpud dead during a step of a container's life, and back after it: Create fails,
// says how to start vgpud and leaves nothing; nothing else notices.
func (o *one) daemonDead(t *testing.T) {
	type step struct {
		name string
		call func(*one, context.Context) error
	}
	steps := []step{
		{"create", (*one).create}, {"start", (*one).start}, {"exec", (*one).exec}, {"kill", (*one).kill}, {"delete", (*one).delete},
	}
	for _, dead := range []struct{ first, last int }{
		{0, 0},
		{1, 1},
		{2, 2},
		{3, 3},
		{4, 4},
		{1, 4}, // back only when the container is gone
	} {
		t.Run(steps[dead.first].name+" to "+steps[dead.last].name, func(t *testing.T) {
			o := o.another(t)
			for i, s := range steps {
				if i == dead.first {
					o.must(func(context.Context) error { return o.Daemon.Process().Kill() })
				}
				err := s.call(o, o.Ctx)
				if i == 0 && dead.first == 0 {
					if err == nil || !strings.Contains(err.Error(), "systemctl start vgpud") {
						t.Errorf("Create ended with %v", err)
					}
					o.must(o.Daemon.Start)
					o.nothing()
					o = o.another(t)
					err = s.call(o, o.Ctx)
				} else if i == dead.last {
					o.must(o.Daemon.Start)
				}
				if err != nil {
					t.Fatalf("%s: %v", s.name, err)
				}
			}
			o.nothing()
		})
	}
}

// vgpud killed in the middle of a Create, and started again: its successor answers.
func (o *one) daemonKilled(t *testing.T) {
	o = o.another(t)
	wait, _ := o.asking(o.Ctx)
	if err := o.Daemon.Process().Kill(); err != nil {
		t.Fatal(err)
	}
	o.must(o.Daemon.Start)
	if err := wait(); err != nil {
		t.Fatal(err)
	}
	o.must(o.start, o.exec, o.kill, o.delete)
	o.nothing()
}

// The file system of the bundles gets full, at every point of Create: it fails and
// says so, or works; nothing stays, and once there is room the next works.
func (o *one) fullDisk(t *testing.T) {
	bundles := filepath.Dir(o.Containerd.BundlePath(o.model.ID))
	if err := o.Memory(bundles, "1m"); err != nil {
		t.Fatal(err)
	}
	failed, ours := 0, 0
	for room := 1; ; room++ { // in pages
		o := o.another(t)
		filler := fill(t, bundles, room)
		err := o.create(o.Ctx)
		if err := os.Remove(filler); err != nil {
			t.Fatal(err)
		}
		if err == nil {
			o.must(o.start, o.exec, o.kill, o.delete)
		} else if !strings.Contains(err.Error(), "no space left on device") &&
			!strings.Contains(err.Error(), "runc did not terminate successfully") { // it logs there, too
			t.Errorf("with %d pages left: %v", room, err)
		}
		if err != nil && strings.Contains(err.Error(), "failed to start shim") {
			// containerd itself ran out of room after the start of the shim. It
			// leaves the socket then, that of the stock shim, too.
			if err := o.Containerd.RemoveShimSocket(o.c.ID); err != nil {
				t.Error(err)
			}
		}
		o.nothing()
		if left, lerr := os.ReadDir(bundles); lerr != nil || len(left) != 0 {
			t.Errorf("with %d pages left there is %v, %v", room, left, lerr)
		}
		if err == nil {
			break
		}
		failed++
		if strings.Contains(err.Error(), "failed to replace") {
			ours++
		}
	}
	t.Logf("%d Creates failed, %d of them where the shim writes", failed, ours)
	if ours == 0 {
		t.Error("the shim never ran out of room")
	}
}

// fill leaves so many pages of room in a directory's file system.
func fill(t *testing.T, dir string, pages int) (filler string) {
	t.Helper()
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil {
		t.Fatal(err)
	}
	filler = filepath.Join(dir, "filler")
	if err := os.WriteFile(filler, make([]byte, (int(fs.Bfree)-pages)*int(fs.Bsize)), 0o600); err != nil {
		t.Fatal(err)
	}
	return filler
}
