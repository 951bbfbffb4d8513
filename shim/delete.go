// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"context"

	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
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
	if r.GetExecID() == "" {
		s.created(ctx, r.GetID())
	}
	resp, err := s.TTRPCTaskService.Delete(ctx, r)
	if err != nil || r.GetExecID() != "" {
		return resp, err
	}
	if dir, ok := s.bundle(r.GetID()); ok {
		s.forget(r.GetID())
		if err := release(ctx, dir, s.releaseTimeout); err != nil {
			log.G(ctx).WithError(err).WithField("id", r.GetID()).Warn("left to the cleanup of the bundle")
		}
	}
	return resp, nil
}
