// SPDX-License-Identifier: Apache-2.0

package kube

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"github.com/sirupsen/logrus"
	"google.golang.org/protobuf/proto"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/kube/vgpud"
	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// firstWord is how long a claim waits for a vgpud that has not said anything yet.
const firstWord = 3 * time.Second

// PrepareResourceClaims makes claims ready for the containers of a pod. One that is
// ready already is made so again, which changes nothing.
func (d *Driver) PrepareResourceClaims(ctx context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	out := make(map[types.UID]kubeletplugin.PrepareResult)
	for _, c := range claims {
		began := time.Now()
		devices, err := d.prepare(ctx, c)
		d.metrics.observe("prepare", began, err)
		log := d.cfg.Log.WithFields(logrus.Fields{"claim": c.Namespace + "/" + c.Name, "uid": c.UID})
		if err != nil {
			log.WithError(err).Warn("claim not prepared")
		} else {
			log.WithField("devices", len(devices)).Info("claim prepared")
		}
		out[c.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return out, nil
}

func (d *Driver) prepare(ctx context.Context, c *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	if err := checkUID(c.UID); err != nil {
		return nil, err
	}
	// Not alone yet: vgpud's first word comes after all claims were told to it.
	gpus, err := d.gpus(ctx)
	if err != nil {
		return nil, err
	}
	defer d.alone(c.UID)()
	a, err := allocated(c, d.cfg.NodeName, gpus)
	if err != nil {
		return nil, err
	}
	if len(a.results) == 0 {
		return nil, nil // all of it is other drivers'
	}
	r := &record{
		claim:  &v1.Claim{Uid: string(c.UID), Namespace: c.Namespace, Name: c.Name, Requests: a.grants, Pods: podsOf(c)},
		Memory: a.memory, Shares: sharesOf(a.results), Watched: !ofOnePod(c),
	}
	// The file says first what there may be of the claim, so that nothing is left of
	// it whenever this process ends.
	d.step("begin")
	if err := d.checkpoint.write(r); err != nil {
		return nil, err
	}
	d.step("checkpoint")
	if err := d.tell(ctx, d.promising(r, gpus)); err != nil {
		return nil, err
	}
	d.step("vgpud")
	if err := writeCDI(d.cfg.CDIDir, r.claim); err != nil {
		return nil, err
	}
	d.step("cdi")
	d.setClaimed(c.UID, r.Memory)
	d.watchSharers(r)
	return devices(c.UID, a.results), nil
}

// devices are what kubelet is told of the results.
func devices(uid types.UID, results []resourceapi.DeviceRequestAllocationResult) (out []kubeletplugin.Device) {
	pointed := map[string]bool{}
	for _, r := range results {
		dev := kubeletplugin.Device{Requests: []string{r.Request}, PoolName: r.Pool, DeviceName: r.Device, ShareID: r.ShareID}
		// A request has one pointer, however many GPUs: a container gets all of
		// them or none.
		if !pointed[r.Request] {
			pointed[r.Request] = true
			dev.CDIDeviceIDs = []string{cdiKind + "=" + cdiName(string(uid), r.Request)}
		}
		out = append(out, dev)
	}
	return out
}

// gpus are those of the node. A driver that has just been started may be a little
// ahead of vgpud's word.
func (d *Driver) gpus(ctx context.Context) ([]*v1.GPU, error) {
	ctx, cancel := context.WithTimeout(ctx, d.cfg.firstWord)
	defer cancel()
	for {
		now, changed := d.snapshot()
		if now.gpus != nil {
			return now.gpus, nil
		}
		// Why there is no word is its to say.
		if err := d.ask(ctx, func(ctx context.Context, c v1.ControlClient) error {
			_, err := c.Info(ctx, &v1.InfoRequest{})
			return err
		}); err != nil {
			return nil, err
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, &vgpud.Unreachable{Address: d.cfg.Address, Cause: ctx.Err()}
		}
	}
}

// ask puts a question to vgpud.
func (d *Driver) ask(ctx context.Context, question func(context.Context, v1.ControlClient) error) error {
	return vgpud.Address(d.cfg.Address).AskWithin(ctx, d.cfg.answer, question)
}

// promising is the claim of r as vgpud is told it: with the memory that the scheduler
// counted for it. These are the GPUs of the node.
func (d *Driver) promising(r *record, gpus []*v1.GPU) *v1.Claim {
	c := proto.Clone(r.claim).(*v1.Claim)
	for _, grant := range c.GetRequests() {
		req, err := request.Parse(grant.GetAnnotations(), "", 0)
		if err != nil || req.MemoryBytes == 0 {
			continue // what is wrong with it is vgpud's to say; or it takes nothing from others
		}
		for _, s := range r.Shares {
			for _, g := range gpus {
				if s.Request == grant.GetName() && s.Device == deviceName(g) {
					grant.Promises = append(grant.Promises, &v1.Promise{Gpu: g.GetUuid(), MemoryBytes: req.MemoryBytes, ClaimableBytes: d.claimable(g) * mebibyte})
				}
			}
		}
	}
	return c
}

// tell tells vgpud of a claim.
func (d *Driver) tell(ctx context.Context, c *v1.Claim) error {
	return d.ask(ctx, func(ctx context.Context, client v1.ControlClient) error {
		_, err := client.SetClaim(ctx, &v1.SetClaimRequest{Claim: c})
		return err
	})
}

// UnprepareResourceClaims undoes PrepareResourceClaims. It succeeds for claims that are
// not prepared.
func (d *Driver) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	out := make(map[types.UID]error)
	for _, c := range claims {
		began := time.Now()
		err := d.unprepare(ctx, c.UID)
		d.metrics.observe("unprepare", began, err)
		log := d.cfg.Log.WithFields(logrus.Fields{"claim": c.NamespacedName.String(), "uid": c.UID})
		if err != nil {
			log.WithError(err).Warn("claim not released")
		} else {
			log.Info("claim released")
		}
		out[c.UID] = err
	}
	return out, nil
}

func (d *Driver) unprepare(ctx context.Context, uid types.UID) error {
	if err := checkUID(uid); err != nil {
		return err
	}
	defer d.alone(uid)()
	d.unwatchSharers(uid)
	if err := removeFile(cdiPath(d.cfg.CDIDir, uid)); err != nil {
		return err
	}
	d.step("no cdi")
	err := d.forget(ctx, uid)
	if vgpud.IsUnreachable(err) {
		// A pod must not hang in Terminating because vgpud is down: it is told
		// when it is back.
		d.cfg.Log.WithField("uid", uid).WithError(err).Warn("a claim was released without vgpud, which will be told")
		r := &record{claim: &v1.Claim{Uid: string(uid)}, Released: true}
		if err = d.checkpoint.write(r); err == nil {
			d.step("released")
		}
	} else if err == nil {
		d.step("no vgpud")
		err = d.checkpoint.remove(uid)
		d.step("no checkpoint")
	}
	if err == nil {
		d.setClaimed(uid, nil)
	}
	return err
}

// forget lets vgpud forget a claim.
func (d *Driver) forget(ctx context.Context, uid types.UID) error {
	return d.ask(ctx, func(ctx context.Context, c v1.ControlClient) error {
		_, err := c.DeleteClaim(ctx, &v1.DeleteClaimRequest{Uid: string(uid)})
		return err
	})
}

// checkUID keeps what came from outside from being a path.
func checkUID(uid types.UID) error {
	if s := string(uid); s == "" || s[0] == '.' || filepath.Base(s) != s {
		return fmt.Errorf("%q is not the UID of a claim", s)
	}
	return nil
}
