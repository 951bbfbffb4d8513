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
)

const (
	// createTimeout bounds what vgpud may take for a Create in all: connecting,
	// its answer, and the release if that is an error.
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

	// The deadlines above; tests have others.
	createTimeout, releaseTimeout, dialPatience time.Duration

	mu sync.Mutex
	// bundles holds the bundle directory of each container that has a vGPU or
	// is being given one. Guarded by mu, which is never held across a call.
	bundles map[string]string
	// creating holds, of each container whose Create is under way, what is closed at
	// its end. Guarded by mu.
	creating map[string]chan struct{}
}

var _ taskv3.TTRPCTaskService = (*service)(nil)

func newService(inner taskv3.TTRPCTaskService, containerd string) *service {
	return &service{
		TTRPCTaskService: inner,
		containerd:       containerd,
		load:             loadHandler,
		createTimeout:    createTimeout,
		releaseTimeout:   releaseTimeout,
		dialPatience:     dialPatience,
		bundles:          make(map[string]string),
		creating:         make(map[string]chan struct{}),
	}
}

// create notes that a container's Create is under way, until end is called.
func (s *service) create(id string) (end func()) {
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
func (s *service) reserve(id, bundle string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if _, ok := s.bundles[id]; ok {
		return fmt.Errorf("container %s: %w", id, errdefs.ErrAlreadyExists)
	}
	s.bundles[id] = bundle
	return nil
}

// bundle returns the bundle of a container that has a vGPU.
func (s *service) bundle(id string) (dir string, ok bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	dir, ok = s.bundles[id]
	return dir, ok
}

func (s *service) forget(id string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.bundles, id)
}
