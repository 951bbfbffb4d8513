// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/ttrpc"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/gpu/gputest"
	"github.com/vgpu-shim/vgpu/vgpu/kube/kubetest"
)

// full is a vgpud whose store is full.
type full struct{ v1.ControlService }

func (full) SetClaim(context.Context, *v1.SetClaimRequest) (*v1.SetClaimResponse, error) {
	return nil, errgrpc.ToGRPC(errdefs.ErrResourceExhausted.WithMessage("no space left on device"))
}

// between stands between the driver and vgpud, for what is asked to go another way.
type between struct {
	path   string                 // the socket
	claims atomic.Pointer[string] // the socket for what tells of claims; nil: vgpud's
	tells  atomic.Int32           // how often that was
}

// between serves one until the test ends.
func (p *place) between() *between {
	p.t.Helper()
	b := &between{path: filepath.Join(p.dir, "between.sock")}
	l, err := net.Listen("unix", b.path)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go b.pass(conn, filepath.Join(p.dir, "vgpu", "vgpud.sock"))
		}
	}()
	return b
}

// pass passes on what one connection is for: each question has its own, and begins with it.
func (b *between) pass(conn net.Conn, to string) {
	defer conn.Close()
	first := make([]byte, 64<<10)
	n, err := conn.Read(first)
	if err != nil {
		return
	}
	if bytes.Contains(first[:n], []byte("SetClaim")) {
		b.tells.Add(1)
		if other := b.claims.Load(); other != nil {
			to = *other
		}
	}
	vgpud, err := net.Dial("unix", to)
	if err != nil {
		return
	}
	defer vgpud.Close()
	if _, err := vgpud.Write(first[:n]); err != nil {
		return
	}
	go func() {
		_, _ = io.Copy(vgpud, conn)
		vgpud.Close()
	}()
	_, _ = io.Copy(conn, vgpud)
}

// full serves a vgpud whose store is full, on the socket that is returned.
func (p *place) full() string {
	p.t.Helper()
	path := filepath.Join(p.dir, "full.sock")
	server, err := ttrpc.NewServer()
	if err != nil {
		p.t.Fatal(err)
	}
	v1.RegisterControlService(server, full{})
	l, err := net.Listen("unix", path)
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() { server.Close() })
	go func() { _ = server.Serve(context.Background(), l) }()
	return path
}

// share reserves a claim for podB, too.
func (r *running) share(c *resourceapi.ResourceClaim) {
	r.t.Helper()
	// Unlike an API server this one tells nobody what was written between a list and the
	// watch that follows it.
	kubetest.Until(r.t, "the driver watches the claim", r.watchesClaims)
	c = c.DeepCopy()
	c.Status.ReservedFor = append(c.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: "pod-b", UID: "pod-b-uid"})
	if _, err := r.client.ResourceV1().ResourceClaims("ml").UpdateStatus(r.t.Context(), c, metav1.UpdateOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

// untold is of how many claims vgpud could not be told.
func (r *running) untold() int {
	r.driver.mu.Lock()
	defer r.driver.mu.Unlock()
	return len(r.driver.untold)
}

// A vgpud that is there all the time, and could not be told of a claim, is told of it again.
// The log says so once. Nobody tells it any more when the claim is gone.
func TestVgpudIsToldAgainOfWhatItCouldNotBeTold(t *testing.T) {
	t.Parallel()
	lostStore := func(r *running, _ *resourceapi.ResourceClaim) {
		r.stopVgpud()
		if err := os.RemoveAll(filepath.Join(r.dir, "vgpu")); err != nil {
			r.t.Fatal(err)
		}
		r.vgpud(r.gpus)
	}
	isFull := func(p *place) string { return p.full() }
	isSilent := func(p *place) string { return filepath.Join(p.dir, "nobody.sock") }
	for _, tc := range []struct {
		description string
		fails       func(*place) string // who is told instead
		happens     func(*running, *resourceapi.ResourceClaim)
		pod         *v1.Pod // who gets the claim in the end
	}{
		{"its store is full when a second pod comes", isFull, (*running).share, podB},
		{"it does not answer when a second pod comes", isSilent, (*running).share, podB},
		{"it lost its store, and that is full", isFull, lostStore, podA},
		{"it lost its store, and does not answer", isSilent, lostStore, podA},
	} {
		for _, gone := range []bool{false, true} {
			name := tc.description
			if gone {
				name += ", and the claim goes"
			}
			t.Run(name, func(t *testing.T) {
				c := claimWith("train", result("gpu", 0, "4Gi", "25"))
				r := &running{place: newPlace(t), gpus: gputest.New(1), client: newClient(c)}
				r.stopVgpud = r.vgpud(r.gpus)
				b := r.between()
				var log syncBuffer
				r.start(func(cfg *Config) {
					cfg.Address, cfg.untoldInterval = b.path, 10*time.Millisecond
					cfg.Log.Logger.SetOutput(&log)
				})
				if _, err := r.kubelet.prepare(c); err != nil {
					t.Fatal(err)
				}
				fails, before := tc.fails(r.place), b.tells.Load()
				b.claims.Store(&fails)
				tc.happens(r, c)
				kubetest.Until(t, "it is told again and again", func() bool { return b.tells.Load() > before+3 })
				if _, err := r.resolve(tc.pod, "uid-train", "gpu"); err == nil {
					t.Error("vgpud knew it")
				}
				if gone {
					if err := r.kubelet.unprepare(c); err != nil {
						t.Fatal(err)
					}
				} else {
					b.claims.Store(nil)
				}
				kubetest.Until(t, "there is nothing left to tell", func() bool { return r.untold() == 0 })
				before = b.tells.Load()
				r.driver.tellUntoldOnce()
				if n := b.tells.Load() - before; n != 0 {
					t.Errorf("it is told %d times more", n)
				}
				if _, err := r.resolve(tc.pod, "uid-train", "gpu"); (err == nil) == gone {
					t.Errorf("the pod: %v", err)
				}
				if n := strings.Count(log.String(), "vgpud was not told of a claim"); n != 1 {
					t.Errorf("the log says so %d times: %s", n, log.String())
				}
			})
		}
	}
}

// While vgpud is away nothing is tried, nor logged: it is told of all claims when it is back.
func TestAVgpudThatIsAwayIsNotToldAgain(t *testing.T) {
	c := claimWith("train", result("gpu", 0, "4Gi", "25"))
	r := &running{place: newPlace(t), gpus: gputest.New(1), client: newClient(c)}
	r.stopVgpud = r.vgpud(r.gpus)
	b := r.between()
	var log syncBuffer
	r.start(func(cfg *Config) {
		cfg.Address, cfg.untoldInterval = b.path, time.Hour // nobody else tells
		cfg.Log.Logger.SetOutput(&log)
	})
	if _, err := r.kubelet.prepare(c); err != nil {
		t.Fatal(err)
	}
	r.stopVgpud()
	kubetest.Until(t, "vgpud is away", func() bool { now, _ := r.driver.snapshot(); return !now.there })
	before := b.tells.Load()
	r.share(c)
	kubetest.Until(t, "the second pod is kept", func() bool { return r.untold() == 1 })
	r.driver.tellUntoldOnce()
	if n := b.tells.Load() - before; n != 1 {
		t.Errorf("it was tried %d times, want once, when the pod came", n)
	}
	r.vgpud(r.gpus)
	kubetest.Until(t, "there is nothing left to tell", func() bool { return r.untold() == 0 })
	if s := "vgpud was not told of a claim"; strings.Contains(log.String(), s) {
		t.Errorf("the log says that %s: %s", s, log.String())
	}
}
