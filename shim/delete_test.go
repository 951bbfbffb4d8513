// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"github.com/vgpu-shim/vgpu/shim/bundle"
	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

func created(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t, plainSpec)
	if err := f.create(); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestDelete(t *testing.T) {
	t.Run("releases the vGPU after the container", func(t *testing.T) {
		f := created(t)
		f.inner.delete = func(*taskv3.DeleteRequest) error {
			f.vgpus(1)
			return nil
		}
		resp, err := f.service.Delete(f.ctx, &taskv3.DeleteRequest{ID: testID})
		if err != nil || resp.GetPid() != 42 || resp.GetExitStatus() != 7 {
			t.Errorf("got %v, %v", resp, err)
		}
		f.vgpus(0)
		f.files("config.json")
	})
	t.Run("of an exec process releases nothing", func(t *testing.T) {
		f := created(t)
		if _, err := f.service.Delete(f.ctx, &taskv3.DeleteRequest{ID: testID, ExecID: "e1"}); err != nil {
			t.Fatal(err)
		}
		f.called("create", "delete")
		f.vgpus(1)
		f.files("config.json", "vgpu.json")
	})
	t.Run("that fails releases nothing", func(t *testing.T) {
		f := created(t)
		f.inner.delete = func(*taskv3.DeleteRequest) error {
			return errgrpc.ToGRPCf(errdefs.ErrFailedPrecondition, "the container runs")
		}
		if err := f.delete(); !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
			t.Errorf("error is %v", err)
		}
		f.vgpus(1)
		f.inner.delete = nil
		if err := f.delete(); err != nil {
			t.Fatal(err)
		}
		f.vgpus(0)
	})
	t.Run("again is the inner service's matter", func(t *testing.T) {
		f := created(t)
		if err := f.delete(); err != nil {
			t.Fatal(err)
		}
		f.inner.delete = func(*taskv3.DeleteRequest) error {
			return errgrpc.ToGRPCf(errdefs.ErrNotFound, "container not created")
		}
		if err := f.delete(); !errdefs.IsNotFound(errgrpc.ToNative(err)) {
			t.Errorf("error is %v", err)
		}
		if n := len(f.vgpud.deleted); n != 1 {
			t.Errorf("the vGPU was deleted %d times", n)
		}
	})
	t.Run("releases also for a caller who has gone", func(t *testing.T) {
		f := created(t)
		ctx, cancel := context.WithCancel(f.ctx)
		f.ctx = ctx
		f.inner.delete = func(*taskv3.DeleteRequest) error { cancel(); return nil }
		if err := f.delete(); err != nil {
			t.Fatal(err)
		}
		f.vgpus(0)
		f.files("config.json")
	})
}

func TestDeleteWithoutVgpud(t *testing.T) {
	for _, c := range []struct {
		description string
		away        func(*fixture)
	}{
		{"not running", func(f *fixture) { f.stop() }},
		{"not answering", func(f *fixture) {
			f.service.releaseTimeout = 50 * time.Millisecond
			f.vgpud.delete = func(ctx context.Context, _ *v1.DeleteRequest) error {
				<-ctx.Done()
				return ctx.Err()
			}
		}},
		{"failing", func(f *fixture) {
			f.vgpud.delete = func(context.Context, *v1.DeleteRequest) error { return errors.New("disk full") }
		}},
	} {
		t.Run(c.description, func(t *testing.T) {
			f := created(t)
			c.away(f)
			if err := f.delete(); err != nil {
				t.Fatalf("Delete failed for vgpud's sake: %v", err)
			}
			// Kept for the next one who cleans up.
			if _, err := bundle.ReadState(f.bundle); err != nil {
				t.Error(err)
			}
		})
	}
}

// release is what Delete, Stop and a failed Create have in common.
func TestRelease(t *testing.T) {
	t.Run("of a container without a vGPU does nothing", func(t *testing.T) {
		f := newFixture(t, plainSpec)
		f.stop()
		if err := release(f.ctx, f.bundle, time.Minute); err != nil {
			t.Error(err)
		}
	})
	t.Run("can be repeated, and comes after vgpud is back", func(t *testing.T) {
		f := created(t)
		f.stop()
		if err := release(f.ctx, f.bundle, time.Minute); !errdefs.IsUnavailable(err) {
			t.Errorf("error is %v", err)
		}
		f.vgpud.serve(t, f.address)
		for range 2 {
			if err := release(f.ctx, f.bundle, time.Minute); err != nil {
				t.Error(err)
			}
		}
		f.vgpus(0)
		f.files("config.json")
		if n := len(f.vgpud.deleted); n != 1 {
			t.Errorf("the vGPU was deleted %d times", n)
		}
	})
	t.Run("leaves a vGPU of another instance", func(t *testing.T) {
		f := created(t)
		f.vgpud.mu.Lock()
		f.vgpud.vgpus[testID] = "LATER"
		f.vgpud.mu.Unlock()
		if err := release(f.ctx, f.bundle, time.Minute); err != nil {
			t.Error(err)
		}
		f.vgpus(1)
	})
}

func TestCheckpoint(t *testing.T) {
	t.Run("of a container with a vGPU is refused", func(t *testing.T) {
		f := created(t)
		_, err := f.service.Checkpoint(f.ctx, &taskv3.CheckpointTaskRequest{ID: testID})
		if !errdefs.IsFailedPrecondition(errgrpc.ToNative(err)) {
			t.Errorf("error is %v", err)
		}
		f.called("create")
	})
	t.Run("of another container is the inner service's matter", func(t *testing.T) {
		f := created(t)
		if _, err := f.service.Checkpoint(f.ctx, &taskv3.CheckpointTaskRequest{ID: "other"}); err != nil {
			t.Error(err)
		}
		f.called("create", "checkpoint")
	})
}

// A client has given up on a Create, and containerd cleans up while it is under way.
func TestDeleteWaitsForACreateThatIsUnderWay(t *testing.T) {
	for name, spec := range map[string]string{"with a vGPU": plainSpec, "without one": specWith(`{"vgpu-shim.dev/gpus": "0"}`)} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, spec)
			overtaken, deleted := make(chan struct{}), make(chan error, 1)
			f.inner.create = func(*taskv3.CreateTaskRequest) error {
				go func() { deleted <- f.delete() }()
				// Nothing tells of a call that does not come: a while is given to one that
				// does. A slow machine can hide the mistake, not invent it.
				select {
				case <-overtaken:
					t.Error("Delete overtook the Create")
				case <-time.After(100 * time.Millisecond):
				}
				f.inner.note("created")
				return nil
			}
			var once sync.Once
			f.inner.delete = func(*taskv3.DeleteRequest) error {
				once.Do(func() { close(overtaken) })
				return nil
			}
			if err := f.create(); err != nil {
				t.Fatal(err)
			}
			if err := <-deleted; err != nil {
				t.Fatal(err)
			}
			f.called("create", "created", "delete")
			f.vgpus(0)
			f.files("config.json")
		})
	}
}

// Its patience ends with the call's.
func TestDeleteDoesNotWaitForeverForACreate(t *testing.T) {
	f := newFixture(t, plainSpec)
	f.inner.create = func(*taskv3.CreateTaskRequest) error {
		ctx, cancel := context.WithCancel(f.ctx)
		cancel()
		_, err := f.service.Delete(ctx, &taskv3.DeleteRequest{ID: testID})
		if err != nil {
			t.Error(err)
		}
		return nil
	}
	if err := f.create(); err != nil {
		t.Fatal(err)
	}
	f.called("create", "delete")
}

// A PID namespace ends with its first process: nothing of the container can compute
// any more, and vgpud is not waited for.
func TestDeleteReleasesWhileRuncCleansUp(t *testing.T) {
	const own, host, pod = `{"type": "pid"}`, `{"type": "mount"}`, `{"type": "pid", "path": "/proc/1/ns/pid"}`
	for _, c := range []struct {
		description string
		namespaces  string
		status      task.Status
		meanwhile   bool
	}{
		{"an ended container with a PID namespace", own, task.Status_STOPPED, true},
		{"one that still runs", own, task.Status_RUNNING, false},
		{"one in the host's", host, task.Status_STOPPED, false},
		{"one in that of a pod", pod, task.Status_STOPPED, false},
	} {
		t.Run(c.description, func(t *testing.T) {
			f := newFixture(t, `{"process": {}, "linux": {"namespaces": [`+c.namespaces+`]}}`)
			if err := f.create(); err != nil {
				t.Fatal(err)
			}
			released := make(chan struct{})
			f.vgpud.delete = func(context.Context, *v1.DeleteRequest) error {
				close(released)
				return nil
			}
			f.inner.status = c.status
			f.inner.delete = func(*taskv3.DeleteRequest) error {
				if c.meanwhile {
					<-released // or the test hangs
					return nil
				}
				// Nothing tells of a call that does not come: a while is given to one that
				// does. A slow machine can hide the mistake, not invent it.
				select {
				case <-released:
					t.Error("the vGPU went before the container")
				case <-time.After(100 * time.Millisecond):
				}
				return nil
			}
			if err := f.delete(); err != nil {
				t.Fatal(err)
			}
			f.vgpus(0)
			f.files("config.json")
			if len(f.vgpud.deleted) != 1 {
				t.Errorf("vgpud was asked %d times", len(f.vgpud.deleted))
			}
		})
	}
}
