// SPDX-License-Identifier: Apache-2.0

package shim

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"time"

	"github.com/vgpu-shim/vgpu/shim/bundle"
	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// release gives back the vGPU that the state file in the bundle names, and
// removes the file. It may be called any number of times, also after the vGPU
// is gone. If vgpud can not be reached within timeout the file stays for the
// next call; should there be none, vgpud collects a vGPU whose bundle is gone.
//
// It runs also when the caller has given up, so ctx's end does not stop it.
func release(ctx context.Context, dir string, timeout time.Duration) error {
	state, err := bundle.ReadState(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), timeout)
	defer cancel()
	return giveBack(ctx, dir, state)
}

// giveBack is release for who knows the state. ctx bounds it.
func giveBack(ctx context.Context, dir string, state bundle.State) error {
	c, err := dial(ctx, state.Address, 0)
	if err != nil {
		return fmt.Errorf("failed to remove the vGPU of container %s: %w", state.ID, err)
	}
	defer c.close()
	_, err = c.Delete(ctx, &v1.DeleteRequest{Container: container(state), Instance: state.Instance})
	if err != nil {
		return failed("remove the vGPU of container "+state.ID, state.Address, err)
	}
	return bundle.RemoveState(dir)
}

// container is how vgpud knows the container of a state.
func container(s bundle.State) *v1.Container {
	return &v1.Container{Containerd: s.Containerd, Namespace: s.Namespace, Id: s.ID}
}
