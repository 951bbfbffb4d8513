// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// A restart of vgpud fails no container, whatever has become of the call.
func TestCreateAsksTheSuccessorOfAVgpudThatEnded(t *testing.T) {
	for _, c := range []struct {
		description string
		asked       int // times that a vgpud read the call
		end         func(*fixture)
	}{
		{"before it read the call", 1, func(f *fixture) {
			f.stop()
			l, err := net.Listen("unix", f.address)
			if err != nil {
				f.t.Fatal(err)
			}
			go func() {
				conn, err := l.Accept()
				l.Close()
				f.vgpud.serve(f.t, f.address)
				if err == nil {
					conn.Close()
				}
			}()
		}},
		{"after it made the vGPU", 2, func(f *fixture) {
			var once atomic.Bool
			f.vgpud.create = func(context.Context, *v1.CreateRequest) error {
				if once.CompareAndSwap(false, true) {
					f.stop()
					f.vgpud.serve(f.t, f.address)
				}
				return nil
			}
		}},
		{"and said so", 2, func(f *fixture) {
			var once atomic.Bool
			f.vgpud.create = func(context.Context, *v1.CreateRequest) error {
				if once.CompareAndSwap(false, true) {
					return errgrpc.ToGRPC(errdefs.ErrUnavailable)
				}
				return nil
			}
		}},
	} {
		t.Run(c.description, func(t *testing.T) {
			f := newFixture(t, plainSpec)
			c.end(f)
			if err := f.create(); err != nil {
				t.Fatal(err)
			}
			f.called("create")
			f.vgpus(1)
			if len(f.vgpud.created) != c.asked {
				t.Errorf("vgpud read %d calls, want %d", len(f.vgpud.created), c.asked)
			}
			for _, r := range f.vgpud.created {
				if r.GetInstance() != f.vgpud.vgpus[testID] {
					t.Errorf("instance %s was asked for, and there is %s", r.GetInstance(), f.vgpud.vgpus[testID])
				}
			}
			if err := f.delete(); err != nil {
				t.Fatal(err)
			}
			f.vgpus(0)
		})
	}
}

// Whether the vGPU was made is not known: its state stays, for Stop.
func TestCreateWithAVgpudThatEndsAndHasNoSuccessor(t *testing.T) {
	f := newFixture(t, plainSpec)
	f.vgpud.create = func(context.Context, *v1.CreateRequest) error {
		f.stop()
		return nil
	}
	err := f.create()
	if !errdefs.IsUnavailable(errgrpc.ToNative(err)) || !strings.Contains(err.Error(), "systemctl start vgpud") {
		t.Errorf("error is %v", err)
	}
	f.called()
	f.files("config.json", "vgpu.json")
}
