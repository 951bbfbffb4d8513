// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"context"
	"fmt"

	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/protobuf/types/known/emptypb"
)

// Checkpoint is refused for a container that has a vGPU: CRIU can restore
// neither what the GPU holds nor the mounts of the driver. Others are runc's.
func (s *service) Checkpoint(ctx context.Context, r *taskv3.CheckpointTaskRequest) (*emptypb.Empty, error) {
	if _, ok := s.tenant(r.GetID()); ok {
		return nil, errgrpc.ToGRPC(fmt.Errorf("container %s has a vGPU and can not be checkpointed: its state on the GPU would be lost: %w",
			r.GetID(), errdefs.ErrFailedPrecondition))
	}
	return s.TTRPCTaskService.Checkpoint(ctx, r)
}
