// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/errdefs/pkg/errgrpc"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
)

// cause is where a reason comes from for which a GPU takes less than it could.
// Each cause has its own reason: who lifts one lifts no other.
type cause uint8

// While one of these has a reason, a GPU takes no grants.
const (
	causeHealth     cause = iota // as the driver says: it is lost, or has a fault
	causeRecovering              // see recovery

	// While one of these has a reason, it takes no binds.
	causeOperator
	causeMode // as the driver says: exclusive compute mode, MPS, MIG

	causes

	firstCordon = causeOperator
)

// gpuCauses are the reasons of one GPU, by cause; "" where there is none.
type gpuCauses [causes]string

// down is why the GPU takes no grants; empty if it does.
func (g *gpuCauses) down() string { return joined(g[:firstCordon]) }

// cordon is why the GPU takes no binds; empty if it does.
func (g *gpuCauses) cordon() string { return joined(g[firstCordon:]) }

// reason is all of it.
func (g *gpuCauses) reason() string { return joined(g[:]) }

// unhealthy says whether the GPU is down for more than a while.
func (g *gpuCauses) unhealthy() bool { return joined(g[:causeRecovering]) != "" }

func joined(reasons []string) string {
	return strings.Join(slices.DeleteFunc(slices.Clone(reasons), func(r string) bool { return r == "" }), "; ")
}

// setCause sets the reason that a GPU has from one cause, or lifts it. The engine
// knows one reason of each kind: it is told when that changes.
func (l *loop) setCause(uuid arbiter.UUID, c cause, reason string) {
	g := l.gpus[uuid]
	if g == nil || g.causes[c] == reason {
		return
	}
	down, cordon := g.causes.down(), g.causes.cordon()
	g.causes[c] = reason
	if now := g.causes.down(); now != down {
		if now == "" {
			l.tellGPU(eventGPUUp, uuid, "")
			l.gpuUp(uuid)
		} else {
			l.tellGPU(eventGPUDown, uuid, now)
			l.event(arbiter.Event{Kind: arbiter.GPUDown, GPU: uuid, Reason: now})
		}
	}
	if now := g.causes.cordon(); now != cordon {
		if now == "" {
			l.tellGPU(eventGPUUncordoned, uuid, "")
		} else {
			l.tellGPU(eventGPUCordoned, uuid, now)
		}
		l.event(arbiter.Event{Kind: arbiter.Cordon, GPU: uuid, Reason: now})
	}
}

// gpuMemory takes in how much memory of a GPU is free, as the driver says.
func (l *loop) gpuMemory(uuid arbiter.UUID, bytes uint64) {
	if g := l.gpus[uuid]; g != nil {
		g.memoryFree = &bytes
		l.event(arbiter.Event{Kind: arbiter.GPUMemory, GPU: uuid, MemoryBytes: bytes})
	}
}

// residents are the ids of the vGPUs on each GPU: those that are bound to it, and
// those that may be while a restarted vgpud does not know better.
func (l *loop) residents() map[arbiter.UUID][]string {
	all := make(map[arbiter.UUID][]string)
	for _, v := range l.vgpus {
		on := v.bound
		if !v.adopted {
			on = l.mayUse(v)
		}
		for _, uuid := range on {
			// One that is being removed may stand beside its successor.
			if !slices.Contains(all[uuid], v.rec.ID) {
				all[uuid] = append(all[uuid], v.rec.ID)
			}
		}
	}
	for _, ids := range all {
		slices.Sort(ids)
	}
	return all
}

// gpuNow is a GPU as it stands now.
func (l *loop) gpuNow(uuid arbiter.UUID) *v1.GPU {
	for _, s := range l.engine.GPUs() {
		if s.UUID == uuid && l.gpus[uuid] != nil {
			return l.describeGPU(l.gpus[uuid], s, l.residents()[uuid])
		}
	}
	return nil
}

// CordonGPU keeps vGPUs from being bound to a GPU.
func (d *Daemon) CordonGPU(_ context.Context, r *v1.CordonGPURequest) (*v1.CordonGPUResponse, error) {
	g, err := d.cordon(r.GetUuid(), r.GetReason())
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return &v1.CordonGPUResponse{Gpu: g}, nil
}

// DrainGPU cordons a GPU and tells who is left on it.
func (d *Daemon) DrainGPU(_ context.Context, r *v1.DrainGPURequest) (*v1.DrainGPUResponse, error) {
	g, err := d.cordon(r.GetUuid(), r.GetReason())
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return &v1.DrainGPUResponse{Gpu: g}, nil
}

// UncordonGPU lifts the operator's cordon, and no other.
func (d *Daemon) UncordonGPU(_ context.Context, r *v1.UncordonGPURequest) (*v1.UncordonGPUResponse, error) {
	var f faults
	f.gpuUUID("uuid", r.GetUuid())
	err := f.err()
	var g *v1.GPU
	if err == nil {
		g, err = d.setCordon(r.GetUuid(), "")
	}
	if err != nil {
		return nil, errgrpc.ToGRPC(err)
	}
	return &v1.UncordonGPUResponse{Gpu: g}, nil
}

func (d *Daemon) cordon(uuid, reason string) (*v1.GPU, error) {
	var f faults
	f.gpuUUID("uuid", uuid)
	f.text("reason", reason, maxReason)
	if err := f.err(); err != nil {
		return nil, err
	}
	text := byOperator
	if reason != "" {
		text += ": " + reason
	}
	return d.setCordon(uuid, text)
}

const byOperator = "cordoned by the operator"

// setCordon sets the operator's cordon of a GPU, or lifts it, once that stands in
// the store.
func (d *Daemon) setCordon(uuid, reason string) (*v1.GPU, error) {
	if err := d.known(uuid); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if had := d.set.Cordons[uuid]; had != "" && reason == byOperator {
		reason = had // nobody gave another one
	}
	if d.set.Cordons[uuid] != reason {
		next := d.set
		next.Cordons = with(d.set.Cordons, uuid, reason)
		if err := d.keep(next); err != nil {
			return nil, err
		}
	}
	var g *v1.GPU
	err := d.call(func(l *loop) {
		l.setCause(arbiter.UUID(uuid), causeOperator, reason)
		g = l.gpuNow(arbiter.UUID(uuid))
	})
	if err == nil {
		d.log.WithField("gpu", uuid).WithField("cordon", g.GetCordon()).Info("the operator set or lifted a cordon")
	}
	return g, err
}

// known says whether this node has a GPU.
func (d *Daemon) known(uuid string) error {
	var known bool
	if err := d.call(func(l *loop) { known = l.gpus[arbiter.UUID(uuid)] != nil }); err != nil {
		return err
	}
	if !known {
		return fmt.Errorf("GPU %s is not on this node: %w", uuid, errdefs.ErrNotFound)
	}
	return nil
}

// with is m with key set to value, or without it for the zero value.
func with[V comparable](m map[string]V, key string, value V) map[string]V {
	out := maps.Clone(m)
	if out == nil {
		out = make(map[string]V)
	}
	var zero V
	if value == zero {
		delete(out, key)
	} else {
		out[key] = value
	}
	return out
}
