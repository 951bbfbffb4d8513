// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"context"
	"strings"

	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/vgpu-shim/vgpu/hooks/oci"
	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// Exec makes a further process of a container. Its environment comes from the container's
// spec as containerd has it, without our edits. OpenCL loaders that know nothing but the
// variable (ocl-icd before 2.3.2) would compute past the layer in it, so it gets that as
// the first process did. All else that makes a vGPU is in the container's files.
func (s *service) Exec(ctx context.Context, r *taskv3.ExecProcessRequest) (*emptypb.Empty, error) {
	t, ok := s.tenant(r.GetID())
	if !ok || r.GetSpec() == nil {
		return s.TTRPCTaskService.Exec(ctx, r)
	}
	if t.layer != "" {
		var err error
		if r.Spec.Value, err = oci.EditProcess(r.Spec.Value, oci.EnvList{Name: openCLLayers, First: t.layer}); err != nil {
			return nil, errgrpc.ToGRPC(invalid(err))
		}
	}
	return s.TTRPCTaskService.Exec(ctx, r)
}

// openCLLayer is the layer that vgpud has the container's first process find; empty: none.
func openCLLayer(e *v1.Edits) string {
	for _, v := range e.GetEnv() {
		if layer, ok := strings.CutPrefix(v, openCLLayers+"="); ok {
			return layer
		}
	}
	return ""
}
