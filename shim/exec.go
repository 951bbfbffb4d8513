// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"context"
	"strings"

	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	"github.com/containerd/errdefs/pkg/errgrpc"
	"github.com/containerd/log"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/vgpu-shim/vgpu/hooks/oci"
	"github.com/vgpu-shim/vgpu/shim/bundle"
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
	layer, err := openCLLayer(t.bundle)
	if err != nil {
		// People look with it at what is wrong.
		log.G(ctx).WithError(err).WithField("id", r.GetID()).Warn("a process that is executed does not get the OpenCL layer by the environment")
	}
	if layer != "" {
		if r.Spec.Value, err = oci.EditProcess(r.Spec.Value, oci.EnvList{Name: openCLLayers, First: layer}); err != nil {
			return nil, errgrpc.ToGRPC(invalid(err))
		}
	}
	return s.TTRPCTaskService.Exec(ctx, r)
}

// openCLLayer is our layer as a bundle's first process finds it; empty: it has none.
func openCLLayer(dir string) (string, error) {
	config, err := bundle.LoadConfig(dir)
	if err != nil {
		return "", err
	}
	summary, err := config.Summary()
	if err != nil {
		return "", err
	}
	for _, v := range summary.Process.Env {
		if list, ok := strings.CutPrefix(v, openCLLayers+"="); ok {
			if first, _, _ := strings.Cut(list, ":"); strings.HasPrefix(first, privateDir+"/") {
				return first, nil
			}
		}
	}
	return "", nil
}
