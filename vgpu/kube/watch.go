// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"google.golang.org/protobuf/proto"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/tools/cache"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/kube/vgpud"
)

// redialInterval is the pause between two tries to reach vgpud.
const redialInterval = 250 * time.Millisecond

// untoldInterval is the pause between two tries to tell a vgpud that is there what it
// could not be told. It logs each claim that it refuses.
const untoldInterval = 30 * time.Second

// watchVgpud follows vgpud's GPUs, over its restarts.
func (d *Driver) watchVgpud() {
	var said string
	absent := time.AfterFunc(d.cfg.Absence, func() { d.update(func(s *snapshot) { s.absent = !s.there }) })
	defer absent.Stop()
	for d.ctx.Err() == nil {
		err := d.watchOnce(func() { absent.Stop(); said = "" })
		if d.ctx.Err() != nil {
			return
		}
		if now, _ := d.snapshot(); now.there {
			d.update(func(s *snapshot) { s.there = false })
			absent.Reset(d.cfg.Absence)
		}
		if text := err.Error(); text != said {
			said = text
			d.cfg.Log.WithError(err).Warn("lost vgpud, or never found it")
		}
		select {
		case <-time.After(redialInterval):
		case <-d.ctx.Done():
		}
	}
}

// watchOnce follows one vgpud to its end; found is called at its first word.
func (d *Driver) watchOnce(found func()) error {
	first := true
	return vgpud.Address(d.cfg.Address).Follow(d.ctx, func(info *v1.InfoResponse, gpus []*v1.GPU) {
		if first {
			first = false
			found()
			// One that lost its store, or was away when a claim came or went.
			d.tellAll(gpus)
			d.cfg.Log.WithField("vgpud", info.GetVersion()).WithField("gpus", len(gpus)).Info("found vgpud")
		}
		d.update(func(s *snapshot) {
			if gpus == nil {
				gpus = []*v1.GPU{}
			}
			*s = snapshot{gpus: gpus, driver: info.GetDriverVersion(), there: true, at: time.Now()}
		})
	})
}

// tellAll tells vgpud, which has these GPUs, of all claims as the checkpoint has them.
func (d *Driver) tellAll(gpus []*v1.GPU) {
	uids, err := d.checkpoint.uids()
	if err != nil {
		d.cfg.Log.WithError(err).Error("vgpud was not told of the claims that were prepared")
	}
	for _, uid := range uids {
		d.tellAgain(uid, gpus)
	}
}

func (d *Driver) tellAgain(uid types.UID, gpus []*v1.GPU) {
	defer d.alone(uid)()
	r, err := d.checkpoint.read(uid)
	switch {
	case err != nil || r == nil:
	case !r.Released:
		err = d.tell(d.ctx, d.promising(r, gpus))
	default:
		if err = d.forget(d.ctx, uid); err == nil {
			err = d.checkpoint.remove(uid)
		}
	}
	d.wasTold(uid, err)
}

// wasTold keeps whether vgpud could be told of a claim, of which nobody else is at work. A
// failure is logged once, and not while vgpud is away, which is told elsewhere.
func (d *Driver) wasTold(uid types.UID, err error) {
	d.mu.Lock()
	was := d.untold[uid]
	logged := was || d.now.there || !vgpud.IsUnreachable(err)
	if err == nil {
		delete(d.untold, uid)
	} else {
		d.untold[uid] = logged
	}
	d.mu.Unlock()
	if err != nil && logged && !was && d.ctx.Err() == nil {
		d.cfg.Log.WithField("uid", uid).WithError(err).Warn("vgpud was not told of a claim; it is tried again")
	}
}

// tellUntold tells vgpud again what it could not be told, until the driver ends.
func (d *Driver) tellUntold() {
	tick := time.NewTicker(cmp.Or(d.cfg.untoldInterval, untoldInterval))
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			d.tellUntoldOnce()
		case <-d.ctx.Done():
			return
		}
	}
}

func (d *Driver) tellUntoldOnce() {
	d.mu.Lock()
	now, uids := d.now, slices.Collect(maps.Keys(d.untold))
	d.mu.Unlock()
	if !now.there {
		return // it is told of all claims when it is back
	}
	for _, uid := range uids {
		d.tellAgain(uid, now.gpus)
	}
}

// watchSharers follows for which pods a claim is reserved: kubelet says nothing of one
// that comes to a claim that is prepared. It is alone, or the driver does not serve yet.
func (d *Driver) watchSharers(r *record) {
	uid := types.UID(r.claim.GetUid())
	d.mu.Lock()
	defer d.mu.Unlock()
	if !r.Watched || d.sharers[uid] != nil {
		return
	}
	ctx, cancel := context.WithCancel(d.ctx)
	d.sharers[uid] = cancel
	// That claim alone: one informer of all claims would hold the cluster's on each node.
	name := r.claim.GetName()
	factory := informers.NewSharedInformerFactoryWithOptions(d.cfg.Client, 0, informers.WithNamespace(r.claim.GetNamespace()),
		informers.WithTweakListOptions(func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", name).String()
		}))
	informer := factory.Resource().V1().ResourceClaims().Informer()
	saw := func(obj any) {
		if c, ok := obj.(*resourceapi.ResourceClaim); ok && c.UID == uid {
			d.reserved(c)
		}
	}
	if _, err := informer.AddEventHandler(cache.ResourceEventHandlerFuncs{AddFunc: saw, UpdateFunc: func(_, obj any) { saw(obj) }}); err != nil {
		d.cfg.Log.WithField("uid", uid).WithError(err).Error("further pods that share a claim will not be seen")
	}
	d.wg.Go(func() { informer.RunWithContext(ctx) })
}

func (d *Driver) unwatchSharers(uid types.UID) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if cancel := d.sharers[uid]; cancel != nil {
		cancel()
		delete(d.sharers, uid)
	}
}

// reserved takes in for which pods a claim is.
func (d *Driver) reserved(c *resourceapi.ResourceClaim) {
	defer d.alone(c.UID)()
	r, err := d.checkpoint.read(c.UID)
	if err == nil && (r == nil || r.Released) {
		return
	}
	if err == nil {
		pods := podsOf(c)
		if slices.EqualFunc(pods, r.claim.GetPods(), func(a, b *v1.Pod) bool { return proto.Equal(a, b) }) {
			return
		}
		if len(pods) == 0 {
			return // it is on its way out; those that run may restart their containers until then
		}
		r.claim.Pods = pods
		if err = d.checkpoint.write(r); err == nil {
			now, _ := d.snapshot()
			d.wasTold(c.UID, d.tell(d.ctx, d.promising(r, now.gpus)))
		}
	}
	if err != nil {
		d.cfg.Log.WithField("uid", c.UID).WithError(err).Error("a pod that shares a claim can not be made known")
	}
}
