// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"

	"github.com/containerd/errdefs"

	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// bindEarly chooses the GPUs of a vGPU that was just made, before its container
// is. It is alone, see Daemon.alone.
func (d *Daemon) bindEarly(v *vgpu) ([]arbiter.UUID, error) {
	var bound []arbiter.UUID
	done := make(chan error, 1)
	if err := d.call(func(l *loop) {
		v.early = func(err error) {
			v.early = nil
			bound = v.bound
			done <- err
		}
		l.bindLooked(v)
	}); err != nil {
		return nil, err
	}
	select {
	case err := <-done:
		return bound, err
	case <-d.ended:
		return nil, errStopping
	}
}

// boundEarly ends the wait of bindEarly, if there is one.
func (v *vgpu) boundEarly(reason string) {
	switch {
	case v.early == nil:
	case reason == "":
		v.early(nil)
	default:
		v.early(fmt.Errorf("%sbind=early: %s: %w", request.Prefix, reason, errdefs.ErrFailedPrecondition))
	}
}
