// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/kube/vgpud"
)

// Reasons of events of pods; vgpu-node-restriction allows no others.
const (
	waitsForGuest = "WaitsForGuest"
	withoutClaim  = "WithoutClaim"
)

// podsInterval is how often it is looked whom there is something to tell.
const podsInterval = 5 * time.Second

// tellPods makes events of pods, until the driver ends: of those that wait for memory
// which the scheduler counted for them and a guest has, as can be where it allocated a
// GPU before it heard of the guest; and of those whose GPU it does not count at all.
func (d *Driver) tellPods() {
	tick := time.NewTicker(podsInterval)
	defer tick.Stop()
	said, logged := map[string]string{}, map[string]string{}
	for {
		select {
		case <-tick.C:
		case <-d.ctx.Done():
			return
		}
		if err := d.lookAtPods(said, logged); err != nil && d.ctx.Err() == nil && !vgpud.IsUnreachable(err) { // vgpud's absence is told elsewhere
			d.cfg.Log.WithError(err).Warn("not all pods that wait for guests or compute without a claim have an event; it is tried again")
		}
	}
}

// lookAtPods makes the events, each once; the next look makes those that could not be
// written. The log has them all the same. In said is what was told of a vGPU that waits, and
// of a pod without a claim, as long as they are there; in logged what was logged of them.
func (d *Driver) lookAtPods(said, logged map[string]string) error {
	var vgpus []*v1.VGPU
	if err := d.ask(d.ctx, func(ctx context.Context, c v1.ControlClient) error {
		resp, err := c.List(ctx, &v1.ListRequest{})
		vgpus = resp.GetVgpus()
		return err
	}); err != nil {
		return err
	}
	there := map[string]bool{}
	var failed error // the last
	tell := func(key, what string, pod *v1.Pod, reason, message string) {
		there[key] = true
		if logged[key] != what {
			logged[key] = what
			d.cfg.Log.WithField("pod", pod.GetNamespace()+"/"+pod.GetName()).Warn(message)
		}
		if said[key] == what || failed != nil && isAway(failed) { // then the others wait
			return
		}
		ctx, cancel := context.WithTimeout(d.ctx, answerTimeout)
		defer cancel()
		err := d.event(ctx, corev1.ObjectReference{
			APIVersion: "v1", Kind: "Pod", Namespace: pod.GetNamespace(), Name: pod.GetName(), UID: types.UID(pod.GetUid()),
			FieldPath: "spec.containers{" + pod.GetContainer() + "}",
		}, reason, message)
		if err != nil {
			failed = err
			return
		}
		said[key] = what
	}
	for _, v := range vgpus {
		pod := v.GetPod()
		if pod.GetName() == "" {
			continue
		}
		if why := waitsFor(v, vgpus); why != "" {
			tell(v.GetId(), why, pod, waitsForGuest, fmt.Sprintf("container %s waits for %s: the scheduler did not know of that one yet. "+
				"It goes on when that one has ended; nobody waits so where all have claims with placement: allocated", pod.GetContainer(), why))
		}
		if key := pod.GetUid(); len(v.GetClaims()) == 0 && !there[key] {
			tell(key, withoutClaim, pod, withoutClaim, fmt.Sprintf("container %s has a vGPU without a claim, so kube-scheduler counts no GPU for it, "+
				"and it gets no memory that is kept for claims: name a ResourceClaim or a ResourceClaimTemplate in spec.resourceClaims and in resources.claims "+
				"of the container, or ask for vgpu-shim.dev/gpu in its limits; a pod that needs no GPU has the annotation vgpu-shim.dev/gpus: \"0\"", pod.GetContainer()))
		}
	}
	gone := func(key, _ string) bool { return !there[key] }
	maps.DeleteFunc(said, gone)
	maps.DeleteFunc(logged, gone)
	return failed
}

// isAway says of a failed write that another would most likely fail, too: the API server
// did not answer, or has too much to do. It answers otherwise where the fault is what was
// written: a webhook that looks at it is down, say.
func isAway(err error) bool {
	_, answered := errors.AsType[*apierrors.StatusError](err)
	return !answered || apierrors.IsTooManyRequests(err) || apierrors.IsServiceUnavailable(err) || apierrors.IsTimeout(err) || apierrors.IsServerTimeout(err)
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
