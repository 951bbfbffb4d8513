// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"fmt"
	"time"

	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// Policy is a named setting of shares, as users of other products know them.
// The zero value leaves everything as each vGPU asks for it.
type Policy struct {
	Preset request.Preset
	// Slots is how many parts of a GPU the average policy makes; 0 stands for
	// DefaultSlots.
	Slots int
}

// DefaultSlots is the number of parts of a GPU where none is named.
const DefaultSlots = 20

// MaxSlots is the most parts of a GPU that can be made.
const MaxSlots = 100

// policy is what is in force for v: its own, else that of its GPU (of the first,
// if it has several), else the node's.
func (e *Engine) policy(v *vgpu) Policy {
	if len(v.gpus) > 0 {
		return e.policyOn(v.gpus[0], v)
	}
	return e.cfg.Policy.over(Policy{}, v.req.Policy)
}

// policyOn is what would be in force for v, were g its GPU.
func (e *Engine) policyOn(g *gpu, v *vgpu) Policy { return e.cfg.Policy.over(g.policy, v.req.Policy) }

// over puts a GPU's policy, and then a vGPU's, over the node's.
func (p Policy) over(gpu Policy, vgpu request.Preset) Policy {
	if gpu.Preset != request.Default {
		p = gpu
	}
	if vgpu != request.Default {
		p.Preset = vgpu
	}
	return p
}

// settings are what a request comes to under p.
func (p Policy) settings(req request.Request, quantum time.Duration) settings {
	s := settings{
		weight: request.DefaultWeight, class: request.Normal, quantum: quantum,
	}
	if req.Quantum > 0 {
		s.quantum = req.Quantum
	}
	weight := s.weight
	if req.Weight > 0 {
		weight = req.Weight
	}
	slot := int64(ppm / DefaultSlots)
	if p.Slots > 0 {
		slot = int64(ppm / p.Slots)
	}
	part := share(req.MaxShare)
	if part == 0 {
		part = share(req.MinShare)
	}
	switch p.Preset {
	case request.Native:
		s.native = true
	case request.Average:
		s.min, s.max = slot, slot
	case request.Fair:
	case request.Weighted:
		s.weight = weight
	case request.Fixed:
		if part == 0 {
			part = slot
		}
		s.min, s.max = part, part
	case request.Hybrid:
		s.min, s.max, s.weight = part, part, weight
	case request.OnlineOffline:
		s.weight = weight
		if s.class = request.Low; req.Priority == request.High {
			s.class = request.High
		}
	default:
		s.weight, s.class = weight, req.Priority
		s.min, s.max = share(req.MinShare), share(req.MaxShare)
	}
	return s
}

func (e *Engine) setPolicy(now time.Duration, ev Event) {
	if ev.GPU == "" {
		e.cfg.Policy = ev.Policy
	} else if g := e.gpus[ev.GPU]; g != nil {
		g.policy = ev.Policy
	}
	for _, id := range e.IDs() { // in an order that does not change
		e.settle(now, e.vgpus[id])
	}
	e.room = true
}

// CanSetPolicy is why SetPolicy must not set p for a GPU, or for the node if uuid
// is empty; nil if it may: what it guarantees to those that are there must not
// be more than there is.
func (e *Engine) CanSetPolicy(uuid UUID, p Policy) error {
	sums := make(map[*gpu]int64)
	for _, v := range e.vgpus { // sums, in any order
		if len(v.gpus) == 0 {
			continue
		}
		node, own := e.cfg.Policy, v.gpus[0].policy
		if uuid == "" {
			node = p
		} else if v.gpus[0].uuid == uuid {
			own = p
		}
		for _, g := range v.gpus {
			sums[g] += node.over(own, v.req.Policy).settings(v.req, e.cfg.Quantum).min
		}
	}
	for _, g := range e.order {
		if sums[g] > max(ppm, g.guaranteed) {
			return fmt.Errorf("%s: under the policy %s its vGPUs would be guaranteed %d%% of its time", g.uuid, p.Preset, sums[g]*100/ppm)
		}
	}
	return nil
}
