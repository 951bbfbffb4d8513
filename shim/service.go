// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"context"
	"fmt"
	"sync"
	"time"

	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/vgpu-shim/vgpu/hooks/oci"
	"github.com/vgpu-shim/vgpu/shim/mounts"
)

const (
	// createTimeout bounds what vgpud may take for a Create in all: connecting,
	// its answer, and the release if that is an error. What claims give is asked
	// before that, within as much.
	createTimeout = 3 * time.Second
	// releaseTimeout bounds it for a release. Delete and Stop run inside
	// deadlines of containerd (10 s and 5 s) that runc needs for itself.
	releaseTimeout = time.Second
	// dialPatience is how long a Create tries to reach a vgpud that is not
	// there, so that a restart of vgpud fails no container.
	dialPatience = time.Second
)

// service is the task service of this shim: runc's, with a vGPU added to the
// containers that ask for one. Its methods may be called concurrently.
type service struct {
	taskv3.TTRPCTaskService // runc's

	containerd string // address of the containerd that started this shim
	load       func(*anypb.Any) (handler, error)
	// mount makes mounts for a container that is being created (mounts.Make); nil where
	// the kernel has not what that takes.
	mount func([]oci.Mount) mounting

	// The deadlines above; tests have others.
	createTimeout, releaseTimeout, dialPatience time.Duration

	use     func() // called at each Create
	started func() // called at the end of each Start

	mu sync.Mutex
	// tenants holds each container that has a vGPU or is being given one, by its id.
	// Guarded by mu, which is never held across a call.
	tenants map[string]tenant
	// creating holds, of each container whose Create is under way, what is closed at
	// its end. Guarded by mu.
	creating map[string]chan struct{}
}

// tenant is a container that has a vGPU.
type tenant struct {
	bundle string // directory
	// ownPIDs: all its processes are in a PID namespace that is its own, and have
	// ended when the first one has.
	ownPIDs bool
	layer   string // of OpenCL, as its processes find it; empty: none
}

var _ taskv3.TTRPCTaskService = (*service)(nil)

func newService(inner taskv3.TTRPCTaskService, containerd string) *service {
	s := &service{
		TTRPCTaskService: inner,
		containerd:       containerd,
		load:             loadHandler,
		createTimeout:    createTimeout,
		releaseTimeout:   releaseTimeout,
		dialPatience:     dialPatience,
		use:              func() {},
		started:          func() {},
		tenants:          make(map[string]tenant),
		creating:         make(map[string]chan struct{}),
	}
	if mounts.Supported() {
		s.mount = func(all []oci.Mount) mounting { return mounts.Make(all) }
	}
	return s
}

// create notes that a container's Create is under way, until end is called.
func (s *service) create(id string) (end func()) {
	s.use()
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.creating[id]; ok {
		return func() {} // one of the two fails
	}
	ended := make(chan struct{})
	s.creating[id] = ended
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.creating, id)
		close(ended)
	}
}

// created waits until no Create of the container is under way, or ctx ends.
func (s *service) created(ctx context.Context, id string) {
	s.mu.Lock()
	ended, ok := s.creating[id]
	s.mu.Unlock()
	if !ok {
		return
	}
	select {
	case <-ended:
	case <-ctx.Done():
	}
}

// reserve notes that the container is to get a vGPU. A second Create for it is
// refused here, before it can replace the vGPU of a container that runs.
func (s *service) reserve(id string, t tenant) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.tenants[id]; ok {
		return fmt.Errorf("container %s: %w", id, errdefs.ErrAlreadyExists)
	}
	s.tenants[id] = t
	return nil
}

// giveLayer notes which OpenCL layer a container that has a vGPU gets.
func (s *service) giveLayer(id, layer string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if t, ok := s.tenants[id]; ok {
		t.layer = layer
		s.tenants[id] = t
	}
}

// tenant returns a container that has a vGPU.
func (s *service) tenant(id string) (t tenant, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	t, ok = s.tenants[id]
	return t, ok
}

func (s *service) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.tenants, id)
}
