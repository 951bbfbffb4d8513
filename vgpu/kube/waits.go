// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/kube/vgpud"
)

// waitsInterval is how often it is looked who waits for a guest, while somebody may.
const waitsInterval = 5 * time.Second

// tellWaits tells of pods that wait for memory which the scheduler counted for them and
// a guest has, until the driver ends. That can be where it allocated a GPU before it
// heard of the guest.
func (d *Driver) tellWaits() {
	said := map[string]string{} // of each vGPU
	for d.ctx.Err() == nil {
		now, changed := d.snapshot()
		var pause <-chan time.Time
		if now.there && slices.ContainsFunc(now.gpus, d.overPromised) {
			if err := d.lookForWaits(said); err != nil && d.ctx.Err() == nil && !vgpud.IsUnreachable(err) {
				d.cfg.Log.WithError(err).Warn("it is not known who waits for guests")
			}
			changed, pause = nil, time.After(waitsInterval)
		} else {
			clear(said)
		}
		select {
		case <-changed:
		case <-pause:
		case <-d.ctx.Done():
		}
	}
}

// overPromised says whether more of a GPU was promised than there is beside its guests.
func (d *Driver) overPromised(g *v1.GPU) bool {
	return g.GetMemoryGuestBytes() > 0 && g.GetMemoryPromisedBytes()+g.GetMemoryGuestBytes() > d.claimable(g)*mebibyte
}

// lookForWaits makes an event of each pod that waits for a guest, once, and notes it in
// said.
func (d *Driver) lookForWaits(said map[string]string) error {
	var vgpus []*v1.VGPU
	if err := d.ask(d.ctx, func(ctx context.Context, c v1.ControlClient) error {
		resp, err := c.List(ctx, &v1.ListRequest{})
		vgpus = resp.GetVgpus()
		return err
	}); err != nil {
		return err
	}
	for _, v := range vgpus {
		why, pod := waitsFor(v, vgpus), v.GetPod()
		if why == "" || pod.GetName() == "" || said[v.GetId()] == why {
			continue
		}
		said[v.GetId()] = why
		message := fmt.Sprintf("container %s waits for %s: the scheduler did not know of that one yet. It goes on when that one has ended; "+
			"nobody waits so where all have claims with placement: allocated", pod.GetContainer(), why)
		d.cfg.Log.WithField("pod", pod.GetNamespace()+"/"+pod.GetName()).Warn(message)
		ctx, cancel := context.WithTimeout(d.ctx, answerTimeout)
		d.event(ctx, corev1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: pod.GetNamespace(), Name: pod.GetName(), UID: types.UID(pod.GetUid()),
			FieldPath: "spec.containers{" + pod.GetContainer() + "}",
		}, "WaitsForGuest", message)
		cancel()
	}
	return nil
}

// waitsFor is what of others a vGPU waits for that was promised to it; empty: nothing.
func waitsFor(v *v1.VGPU, vgpus []*v1.VGPU) string {
	const most = 3
	var all []string
	for i, g := range v.GetGuests() {
		if i == most {
			all = append(all, fmt.Sprintf("that of %d more", len(v.GetGuests())-most))
			break
		}
		who := "the vGPU " + g.GetVgpu()
		if i := slices.IndexFunc(vgpus, func(o *v1.VGPU) bool { return o.GetId() == g.GetVgpu() }); i >= 0 {
			switch pod := vgpus[i].GetPod(); {
			case pod.GetName() != "":
				who = fmt.Sprintf("%s/%s (container %s)", pod.GetNamespace(), pod.GetName(), pod.GetContainer())
			default:
				who = "the container " + vgpus[i].GetContainer().GetId()
			}
		}
		all = append(all, fmt.Sprintf("memory of %s, which %s has", g.GetGpu(), who))
	}
	return strings.Join(all, "; ")
}
