// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/claim"
)

// succeed ends vgpud and starts its successor.
func (f *fixture) succeed() {
	f.t.Helper()
	f.stop()
	f.vgpud.serve(f.t, f.address)
}

// unread replaces vgpud by one that ends before it has read a call, and has a successor.
func (f *fixture) unread() {
	f.t.Helper()
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
}

// A restart of vgpud fails no container, whatever has become of the call.
func TestCreateAsksTheSuccessorOfAVgpudThatEnded(t *testing.T) {
	for _, c := range []struct {
		description string
		asked       int // times that a vgpud read the call
		end         func(*fixture)
	}{
		{"before it read the call", 1, (*fixture).unread},
		{"after it made the vGPU", 2, func(f *fixture) {
			var once atomic.Bool
			f.vgpud.create = func(context.Context, *v1.CreateRequest) error {
				if once.CompareAndSwap(false, true) {
					f.succeed()
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
			f.service.dialPatience = time.Minute // the successor may be late
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

// What a claim gives is asked before that, also for a container that has none: its pod may.
func TestCreateAsksTheSuccessorOfAVgpudThatEndedForClaims(t *testing.T) {
	for _, c := range []struct {
		description string
		asked       int32                // times that a vgpud read the call
		end         func(*fixture) error // while vgpud is asked the first time
		before      func(*fixture)
	}{
		{"before it read the call", 1, nil, (*fixture).unread},
		{"before it answered", 2, func(f *fixture) error { f.succeed(); return nil }, nil},
		{"and said so", 2, func(*fixture) error { return errgrpc.ToGRPC(errdefs.ErrUnavailable) }, nil},
	} {
		for of, pointers := range map[string][]claim.Pointer{"with a claim": {pointer}, "without": nil} {
			t.Run(c.description+", "+of, func(t *testing.T) {
				f := newFixture(t, claimedSpec("", pointers...))
				f.service.dialPatience = time.Minute // the successor may be late
				var asked atomic.Int32
				f.vgpud.resolve = func(r *v1.ResolveClaimsRequest) (*v1.ResolveClaimsResponse, error) {
					if len(r.GetPointers()) != len(pointers) {
						t.Errorf("vgpud was asked for %v", r.GetPointers())
					}
					if asked.Add(1) == 1 && c.end != nil {
						if err := c.end(f); err != nil {
							return nil, err
						}
					}
					return &v1.ResolveClaimsResponse{Annotations: ours("gpus", "1")}, nil
				}
				if c.before != nil {
					c.before(f)
				}
				if err := f.create(); err != nil {
					t.Fatal(err)
				}
				f.called("create")
				f.vgpus(1)
				if n := asked.Load(); n != c.asked {
					t.Errorf("vgpud read %d calls, want %d", n, c.asked)
				}
			})
		}
	}
}

func TestCreateByAClaimWithAVgpudThatEndsAndHasNoSuccessor(t *testing.T) {
	f := newFixture(t, claimedSpec("", pointer))
	f.vgpud.resolve = func(*v1.ResolveClaimsRequest) (*v1.ResolveClaimsResponse, error) {
		f.stop()
		return &v1.ResolveClaimsResponse{}, nil
	}
	err := f.create()
	if !errdefs.IsUnavailable(errgrpc.ToNative(err)) || !strings.Contains(err.Error(), "claims of container c1") || !strings.Contains(err.Error(), "systemctl start vgpud") {
		t.Errorf("error is %v", err)
	}
	f.called()
	f.untouched()
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
