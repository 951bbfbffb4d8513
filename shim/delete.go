// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"context"
	"sync"

	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/log"
)

// Delete deletes a process. With the container's first one the container goes,
// and its vGPU. A vgpud that does not answer never fails a Delete: the state
// file stays in the bundle, and Stop, which containerd runs next, tries again.
//
// When a client gives up on a Create, containerd sends a Delete while that is still
// under way, then a Shutdown. Delete waits for its end: had it found nothing, the
// container would come into being after it, the Shutdown would be refused because
// of it, and this process would stay for good.
func (s *service) Delete(ctx context.Context, r *taskv3.DeleteRequest) (*taskv3.DeleteResponse, error) {
	id := r.GetID()
	if r.GetExecID() != "" {
		return s.TTRPCTaskService.Delete(ctx, r)
	}
	s.created(ctx, id)
	t, ok := s.tenant(id)
	if !ok {
		return s.TTRPCTaskService.Delete(ctx, r)
	}
	release := sync.OnceFunc(func() {
		if err := release(ctx, t.bundle, s.releaseTimeout); err != nil {
			log.G(ctx).WithError(err).WithField("id", id).Warn("left to the cleanup of the bundle")
		}
	})
	// The vGPU goes after the container's processes. Where those have ended for
	// certain, it goes while runc cleans up, and nobody waits for vgpud.
	var meanwhile sync.WaitGroup
	if t.ownPIDs && s.ended(ctx, id) {
		meanwhile.Go(release)
	}
	resp, err := s.TTRPCTaskService.Delete(ctx, r)
	meanwhile.Wait()
	if err != nil {
		return resp, err
	}
	s.forget(id)
	release()
	return resp, nil
}

// ended tells whether the first process of a container has ended.
func (s *service) ended(ctx context.Context, id string) bool {
	state, err := s.State(ctx, &taskv3.StateRequest{ID: id})
	return err == nil && state.GetStatus() == task.Status_STOPPED
}
