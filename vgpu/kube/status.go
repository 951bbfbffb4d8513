// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	metaapply "k8s.io/client-go/applyconfigurations/meta/v1"
	resourceapply "k8s.io/client-go/applyconfigurations/resource/v1"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/kube/v1alpha1"
	"github.com/vgpu-shim/vgpu/vgpu/kube/vgpud"
)

// statusSlots is how many claims at most get a new status in one StatusInterval. So a
// cluster's API server has to bear a number of writes that follows from that of its
// nodes alone.
const statusSlots = 10

// fieldManager owns our devices in a claim's status.
const fieldManager = "vgpu-kubelet"

// readyCondition says whether the GPU of an allocation takes work.
const readyCondition = "Ready"

// share is what the status of a claim calls a device: one allocation of a GPU.
type share struct {
	Request string     `json:"request"`
	Device  string     `json:"device"`
	ShareID *types.UID `json:"shareID,omitempty"`
}

func sharesOf(results []resourceapi.DeviceRequestAllocationResult) (out []share) {
	for _, r := range results {
		out = append(out, share{r.Request, r.Device, r.ShareID})
	}
	return out
}

// told is what was last said of a claim.
type told struct {
	at      time.Time
	devices []resourceapi.AllocatedDeviceStatus // nil: it could not be
}

// tellStatus keeps the status of claims as it is, until the driver ends. One claim in
// each slot: the one whose status has been wrong for the longest, and none that had
// one in this interval.
func (d *Driver) tellStatus() {
	tick := time.NewTicker(d.cfg.StatusInterval / statusSlots)
	defer tick.Stop()
	said := map[types.UID]told{}
	forbidden := false
	for {
		select {
		case <-tick.C:
		case <-d.ctx.Done():
			return
		}
		r, devices, err := d.stale(d.ctx, said, time.Now())
		if err != nil {
			if !vgpud.IsUnreachable(err) { // vgpud's absence is told elsewhere
				d.cfg.Log.WithError(err).Warn("the status of claims is not known")
			}
			continue
		}
		if r == nil {
			continue
		}
		log := d.cfg.Log.WithField("claim", r.claim.GetNamespace()+"/"+r.claim.GetName())
		switch err = d.tellClaim(d.ctx, said, r, devices, time.Now()); {
		case err == nil:
			forbidden = false
		case apierrors.IsForbidden(err) && forbidden:
		case apierrors.IsForbidden(err):
			forbidden = true
			log.WithError(err).Warnf("the status of claims is not written: it takes the verb patch on resourceclaims/status and, from Kubernetes 1.36 on, "+
				"%spatch on resourceclaims/driver of the name %s; or --status-interval=0", resourceapi.VerbPrefixAssociatedNode, DriverName)
		case !errors.Is(err, context.Canceled):
			log.WithError(err).Debug("the status of a claim was not written")
		}
	}
}

// tellClaim gives a claim a status, and keeps in said what the claim was told. Whatever
// comes of it, others have their turn: what could not be written is tried again in the
// claim's next one, what was refused for what it says not before it says something else.
func (d *Driver) tellClaim(ctx context.Context, said map[types.UID]told, r *record, devices []resourceapi.AllocatedDeviceStatus, now time.Time) error {
	err := d.writeStatus(ctx, r, devices)
	if err != nil && !apierrors.IsInvalid(err) {
		devices = nil
	}
	said[types.UID(r.claim.GetUid())] = told{now, devices}
	return err
}

// stale is the claim that is to get another status next, and that status; nil: none.
// It forgets in said the claims that are gone.
func (d *Driver) stale(ctx context.Context, said map[types.UID]told, now time.Time) (*record, []resourceapi.AllocatedDeviceStatus, error) {
	uids, err := d.checkpoint.uids()
	if err != nil {
		return nil, nil, err
	}
	for uid := range said {
		if !slices.Contains(uids, uid) {
			delete(said, uid)
		}
	}
	// Those whose time has come, the oldest first.
	uids = slices.DeleteFunc(uids, func(uid types.UID) bool { return now.Sub(said[uid].at) < d.cfg.StatusInterval })
	slices.SortFunc(uids, func(a, b types.UID) int {
		if c := said[a].at.Compare(said[b].at); c != 0 {
			return c
		}
		return strings.Compare(string(a), string(b))
	})
	if len(uids) == 0 {
		return nil, nil, nil
	}
	state, _ := d.snapshot()
	if state.gpus == nil { // not said yet: else all would be gone
		return nil, nil, nil
	}
	var vgpus []*v1.VGPU
	if err := d.ask(ctx, func(ctx context.Context, c v1.ControlClient) error {
		resp, err := c.List(ctx, &v1.ListRequest{})
		vgpus = resp.GetVgpus()
		return err
	}); err != nil {
		return nil, nil, err
	}
	for _, uid := range uids {
		r, err := d.checkpoint.read(uid)
		if err != nil || r == nil || r.Released || len(r.Shares) == 0 {
			continue // it is told elsewhere that it can not be read
		}
		if is := d.statusOf(r, vgpus, state.gpus); !equality.Semantic.DeepEqual(is, said[uid].devices) {
			return r, is, nil
		}
	}
	return nil, nil, nil
}

// statusOf is the status of a claim, as vgpud says.
func (d *Driver) statusOf(r *record, vgpus []*v1.VGPU, gpus []*v1.GPU) (out []resourceapi.AllocatedDeviceStatus) {
	for _, s := range r.Shares {
		status := v1alpha1.NewVgpuStatus(s.Request)
		for _, v := range vgpus {
			if slices.ContainsFunc(v.GetClaims(), func(p *v1.ClaimPointer) bool {
				return p.GetClaim() == r.claim.GetUid() && p.GetRequest() == s.Request
			}) {
				status.Add(v1alpha1.Vgpu{
					Pod: v.GetPod().GetName(), Container: v.GetPod().GetContainer(), GPUs: v.GetGpus(),
					HeldSeconds: int64(v.GetUsage().GetHeld().AsDuration() / time.Second), WaitedSeconds: int64(v.GetUsage().GetWaited().AsDuration() / time.Second),
					Waits: waitsFor(v, vgpus),
				})
			}
		}
		data, err := json.Marshal(status)
		if err != nil {
			panic(err) // it is numbers and texts
		}
		one := resourceapi.AllocatedDeviceStatus{
			Driver: DriverName, Pool: d.cfg.NodeName, Device: s.Device, Data: &runtime.RawExtension{Raw: data},
			Conditions: []metav1.Condition{ready(s.Device, gpus)},
		}
		if s.ShareID != nil {
			id := string(*s.ShareID)
			one.ShareID = &id
		}
		out = append(out, one)
	}
	return out
}

// ready is how the GPU of a share is. The time is not set.
func ready(device string, gpus []*v1.GPU) metav1.Condition {
	c := metav1.Condition{Type: readyCondition, Status: metav1.ConditionTrue, Reason: "Prepared"}
	i := slices.IndexFunc(gpus, func(g *v1.GPU) bool { return deviceName(g) == device })
	switch {
	case i < 0:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, "Gone", "the GPU is not on this node any more"
	case gpus[i].GetState() == "UNHEALTHY":
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, "Unhealthy", gpus[i].GetReason()
	}
	return c
}

// answerTimeout is for one question to the API server.
const answerTimeout = 5 * time.Second

// writeStatus gives a claim a status, unless it has it.
func (d *Driver) writeStatus(ctx context.Context, r *record, devices []resourceapi.AllocatedDeviceStatus) error {
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	claims := d.cfg.Client.ResourceV1().ResourceClaims(r.claim.GetNamespace())
	c, err := claims.Get(ctx, r.claim.GetName(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) || err == nil && (string(c.UID) != r.claim.GetUid() || c.Status.Allocation == nil) {
		return nil // it is on its way out
	}
	if err != nil {
		return fmt.Errorf("failed to read the claim: %w", err)
	}
	status := resourceapply.ResourceClaimStatus()
	same := true
	for _, is := range devices {
		var was resourceapi.AllocatedDeviceStatus
		for _, one := range c.Status.Devices {
			if one.Driver == is.Driver && one.Pool == is.Pool && one.Device == is.Device && equality.Semantic.DeepEqual(one.ShareID, is.ShareID) {
				was = one
			}
		}
		conditions := slices.Clone(was.Conditions)
		changed := meta.SetStatusCondition(&conditions, is.Conditions[0])
		same = same && !changed && sameData(was.Data, is.Data)
		now := *meta.FindStatusCondition(conditions, readyCondition)
		device := resourceapply.AllocatedDeviceStatus().WithDriver(is.Driver).WithPool(is.Pool).WithDevice(is.Device).WithData(*is.Data).
			WithConditions(metaapply.Condition().WithType(now.Type).WithStatus(now.Status).WithReason(now.Reason).
				WithMessage(now.Message).WithLastTransitionTime(now.LastTransitionTime))
		if is.ShareID != nil {
			device.WithShareID(*is.ShareID)
		}
		status.WithDevices(device)
	}
	if same {
		return nil
	}
	apply := resourceapply.ResourceClaim(c.Name, c.Namespace).WithUID(c.UID).WithStatus(status)
	_, err = claims.ApplyStatus(ctx, apply, metav1.ApplyOptions{FieldManager: fieldManager, Force: true})
	if apierrors.IsNotFound(err) {
		return nil // it was
	}
	if err != nil {
		return fmt.Errorf("failed to write the status of the claim: %w", err)
	}
	return nil
}

// sameData says whether two data mean the same: the API server orders their fields as
// it likes.
func sameData(a, b *runtime.RawExtension) bool {
	if a == nil || b == nil {
		return a == b
	}
	var x, y any
	return json.Unmarshal(a.Raw, &x) == nil && json.Unmarshal(b.Raw, &y) == nil && equality.Semantic.DeepEqual(x, y)
}
