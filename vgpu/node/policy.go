// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// SetPolicy chooses how time is shared on a GPU, or on the node.
func (d *Daemon) SetPolicy(_ context.Context, r *v1.SetPolicyRequest) (*v1.SetPolicyResponse, error) {
	err := checkPolicy(r)
	if err == nil && r.GetGpu() != "" {
		err = d.known(r.GetGpu())
	}
	var now *v1.Policy
	if err == nil {
		now, err = d.choosePolicy(arbiter.UUID(r.GetGpu()), chosenPolicy{Name: r.GetPolicy(), Slots: int(r.GetSlots())})
	}
	if err != nil {
		d.log.WithField("gpu", r.GetGpu()).WithError(err).Warn("the policy was not changed")
		return nil, errgrpc.ToGRPC(err)
	}
	return &v1.SetPolicyResponse{Policy: now}, nil
}

func checkPolicy(r *v1.SetPolicyRequest) error {
	var f faults
	if r.GetGpu() != "" {
		f.gpuUUID("gpu", r.GetGpu())
	}
	preset, err := request.ParsePreset(r.GetPolicy())
	if err != nil {
		f.add("policy", clip(r.GetPolicy())+" is none: must be one of "+strings.Join(request.Presets(), ", "))
	}
	switch slots := r.GetSlots(); {
	case slots > arbiter.MaxSlots:
		f.add("slots", fmt.Sprintf("%d is out of bounds: must be from 1 to %d, or 0 for the configuration's", slots, arbiter.MaxSlots))
	case slots > 0 && r.GetGpu() != "" && err == nil && preset == request.Default:
		f.add("slots", "must be 0: with the policy default a GPU has the node's")
	}
	return f.err()
}

// choosePolicy puts kp into force once that stands in the store.
func (d *Daemon) choosePolicy(gpu arbiter.UUID, kp chosenPolicy) (*v1.Policy, error) {
	p, err := d.policy(gpu, kp)
	if err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var refused error
	if err := d.call(func(l *loop) { refused = l.canSetPolicy(gpu, p) }); err != nil {
		return nil, err
	}
	if refused != nil {
		return nil, refused
	}
	before, next := d.set, d.set
	if gpu == "" {
		next.Policy = &kp
	} else {
		next.Policies = with(d.set.Policies, string(gpu), kp)
	}
	if err := d.keep(next); err != nil {
		return nil, err
	}
	var now *v1.Policy
	if err := d.call(func(l *loop) {
		if refused = l.canSetPolicy(gpu, p); refused == nil { // others may have been bound meanwhile
			l.setPolicy(gpu, p)
			now = l.policyOn(l.gpus[gpu])
		}
	}); err != nil {
		return nil, err
	}
	if refused != nil {
		if err := d.keep(before); err != nil {
			d.log.WithError(err).Error("a policy that was refused comes into force when vgpud is restarted")
		}
		return nil, refused
	}
	d.log.WithField("gpu", gpu).WithField("policy", now.GetName()).WithField("slots", now.GetSlots()).Info("the policy was changed")
	return now, nil
}

func (l *loop) canSetPolicy(gpu arbiter.UUID, p arbiter.Policy) error {
	if l.recovery != nil { // what is guaranteed is not known yet
		return fmt.Errorf("%s; try again: %w", reasonRecovering, errdefs.ErrFailedPrecondition)
	}
	if err := l.engine.CanSetPolicy(gpu, p); err != nil {
		return fmt.Errorf("policy: %s: %w", err.Error(), errdefs.ErrFailedPrecondition)
	}
	return nil
}

// setPolicy puts p into force on a GPU, or on the node if none is named. The
// zero policy takes a GPU back to the node's.
func (l *loop) setPolicy(gpu arbiter.UUID, p arbiter.Policy) {
	ev := &v1.Event{Type: eventPolicy}
	if gpu == "" {
		l.policy = p
	} else {
		g := l.gpus[gpu]
		if g == nil {
			return
		}
		g.policy = p
		ev.Gpus = []string{string(gpu)}
	}
	ev.Policy = l.policyOn(l.gpus[gpu])
	l.events.add(ev)
	l.event(arbiter.Event{Kind: arbiter.SetPolicy, GPU: gpu, Policy: p})
}

// policyOn is the policy in force on g, or on the node for nil.
func (l *loop) policyOn(g *gpuState) *v1.Policy {
	p := l.policy
	if g != nil {
		p = cmp.Or(g.policy, p)
	}
	return &v1.Policy{Name: p.Preset.String(), Slots: uint32(p.Slots)}
}
