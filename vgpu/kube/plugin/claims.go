// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"google.golang.org/protobuf/proto"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/claim"
	"github.com/vgpu-shim/vgpu/vgpu/kube/vgpud"
)

// tell makes vgpud know what kubelet gave to containers of pods that live, and nothing
// else of ours. The error is that vgpud is not there, or can not keep it.
func (p *Plugin) tell(c *checkpoint, live map[string]bool, gpus []*v1.GPU) error {
	known := map[string]*v1.Claim{}
	if err := p.cfg.Address.Ask(p.ctx, func(ctx context.Context, client v1.ControlClient) error {
		all, err := client.ListClaims(ctx, &v1.ListClaimsRequest{})
		for _, k := range all.GetClaims() {
			if claim.IsOfLimits(k.GetUid()) {
				known[k.GetUid()] = k
			}
		}
		return err
	}); err != nil {
		return err
	}
	told := 0
	for at, given := range c.given {
		if !live[at.podUID] {
			continue
		}
		if want := p.limits(at, given, gpus); want != nil {
			if err := p.set(want, known[want.GetUid()]); err != nil {
				return err
			}
			delete(known, want.GetUid())
			told++
		}
	}
	p.metrics.containers.Set(float64(told))
	for uid := range known {
		if err := p.cfg.Address.Ask(p.ctx, func(ctx context.Context, client v1.ControlClient) error {
			_, err := client.DeleteClaim(ctx, &v1.DeleteClaimRequest{Uid: uid})
			return err
		}); err != nil {
			return err
		}
		p.cfg.Log.WithField("limits", uid).Info("container has ended")
	}
	return nil
}

// set tells of one container, of which vgpud knows something or nothing. What vgpud
// refuses it keeps as refused: the container's event says why.
func (p *Plugin) set(want, known *v1.Claim) error {
	if proto.Equal(want, known) {
		return nil
	}
	log := p.cfg.Log.WithField("limits", want.GetUid())
	send := func() error {
		return p.cfg.Address.Ask(p.ctx, func(ctx context.Context, client v1.ControlClient) error {
			_, err := client.SetClaim(ctx, &v1.SetClaimRequest{Claim: want})
			return err
		})
	}
	grant := want.GetRequests()[0]
	err := send()
	if err != nil && !vgpud.IsUnreachable(err) && grant.GetRefusal() == "" {
		grant.Annotations, grant.Refusal = nil, err.Error()
		if proto.Equal(want, known) {
			return nil
		}
		err = send()
	}
	switch {
	case err != nil:
		return fmt.Errorf("vgpud was not told of %s: %w", want.GetUid(), err)
	case grant.GetRefusal() != "":
		log.WithField("reason", grant.GetRefusal()).Warn("container refused")
	default:
		log.WithField("gives", grant.GetAnnotations()).Info("container has GPUs by its limits")
	}
	return nil
}

// live are the pods of the checkpoint that have a directory: kubelet makes it before it
// makes their first container, and removes it soon after they have ended. The checkpoint
// also has pods that were refused, and those that have ended until kubelet gives something
// to another one.
func (p *Plugin) live(c *checkpoint) map[string]bool {
	out := map[string]bool{}
	for at := range c.given {
		if _, err := os.Lstat(filepath.Join(p.cfg.PodsDir, at.podUID)); err == nil {
			out[at.podUID] = true
		}
	}
	return out
}
