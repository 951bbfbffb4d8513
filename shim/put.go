// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"context"
	"fmt"

	taskv3 "github.com/containerd/containerd/api/runtime/task/v3"
	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/hooks/oci"
	"github.com/vgpu-shim/vgpu/shim/bundle"
	"github.com/vgpu-shim/vgpu/shim/mounts"
)

// mounting are mounts without a place: *mounts.Mounts.
type mounting interface {
	Put(pid int, rootfs string) error
	Drop()
}

// later tells which mounts are made after the runtime's own, in a container with this
// config.json: the driver's files, which are many. The others stand in config.json, as
// all do where the kernel has not what that takes or where a mount would not stay in the
// container.
func (s *service) later(w bundle.Summary) func(oci.Mount) bool {
	if s.mount == nil || !w.PrivateMounts() {
		return func(oci.Mount) bool { return false }
	}
	return func(m oci.Mount) bool {
		return m.Destination != privateDir && m.Destination != oci.SimulatedGPU && mounts.Fits(m)
	}
}

// discard removes a container that was created and can not be used.
func (s *service) discard(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.createTimeout)
	defer cancel()
	_, err := s.Kill(ctx, &taskv3.KillRequest{ID: id, Signal: uint32(unix.SIGKILL), All: true})
	if err == nil {
		_, err = s.Wait(ctx, &taskv3.WaitRequest{ID: id})
	}
	if err == nil {
		_, err = s.TTRPCTaskService.Delete(ctx, &taskv3.DeleteRequest{ID: id})
	}
	if err != nil {
		return fmt.Errorf("failed to remove it again: %w", err)
	}
	return nil
}
