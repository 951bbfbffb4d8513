// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// Binding is the order in which GPUs are tried at bind. The zero value is
// LeastWait.
type Binding uint8

// The orders.
const (
	LeastWait Binding = iota // where the fewest wait or hold, then where the fewest live
	FirstFit                 // in inventory order
	Random
	Pack   // where the most live
	Spread // where the fewest live
)

var bindings = [...]string{"least-wait", "first-fit", "random", "pack", "spread"}

// String is the order's name.
func (b Binding) String() string { return bindings[b] }

// Bindings is the names of all orders.
func Bindings() []string { return slices.Clone(bindings[:]) }

// ParseBinding finds an order by its name.
func ParseBinding(name string) (Binding, error) {
	if i := slices.Index(bindings[:], name); i >= 0 {
		return Binding(i), nil
	}
	return 0, fmt.Errorf("unknown binding %q, known are %s", name, strings.Join(bindings[:], ", "))
}

// bind chooses the GPUs of v.
func (e *Engine) bind(v *vgpu) {
	if v.state != Unbound {
		e.do(Action{Kind: Bound, VGPU: v.id, GPUs: v.uuids})
		return
	}
	var fit []*gpu
	for _, g := range e.order {
		if g.fits(v.req) == "" {
			fit = append(fit, g)
		}
	}
	if len(fit) < v.req.Count {
		v.reason = e.whyUnbindable(v.req, len(fit))
		e.do(Action{Kind: Unbindable, VGPU: v.id, Reason: v.reason})
		return
	}
	e.sort(fit)
	for _, g := range fit[:v.req.Count] {
		e.attach(v, g)
	}
	v.state, v.reason = Idle, ""
	e.do(Action{Kind: Bound, VGPU: v.id, GPUs: v.uuids})
}

// sort puts GPUs that are in inventory order into the order of the policy.
func (e *Engine) sort(fit []*gpu) {
	switch e.cfg.Binding {
	case FirstFit:
	case Random:
		e.random.Shuffle(len(fit), func(i, j int) { fit[i], fit[j] = fit[j], fit[i] })
	case Pack:
		slices.SortStableFunc(fit, func(a, b *gpu) int { return cmp.Or(b.bound-a.bound, cmp.Compare(b.ledger, a.ledger)) })
	case Spread:
		slices.SortStableFunc(fit, func(a, b *gpu) int { return cmp.Or(a.bound-b.bound, cmp.Compare(a.ledger, b.ledger)) })
	default:
		slices.SortStableFunc(fit, func(a, b *gpu) int { return cmp.Or(a.load()-b.load(), a.bound-b.bound) })
	}
}

// load is how many vGPUs compute on g or wait to.
func (g *gpu) load() int {
	n := len(g.waiting.all)
	if g.holder != nil {
		n++
	}
	return n
}

func (e *Engine) whyUnbindable(req request.Request, fit int) string {
	s := fmt.Sprintf("%d of %d GPUs asked for can be had", fit, req.Count)
	for _, g := range e.order {
		if why := g.fits(req); why != "" {
			s += fmt.Sprintf("; %s: %s", g.uuid, why)
		}
	}
	return s
}

func (e *Engine) attach(v *vgpu, g *gpu) {
	g.bound++
	g.ledger += v.req.MemoryBytes
	g.guaranteed += share(v.req.MinShare)
	v.gpus = append(v.gpus, g)
	v.uuids = append(slices.Clone(v.uuids), g.uuid)
}

func (e *Engine) unbind(v *vgpu) {
	for _, g := range v.gpus {
		g.bound--
		g.ledger -= v.req.MemoryBytes
		g.guaranteed -= share(v.req.MinShare)
	}
	v.gpus, v.uuids, v.state = nil, nil, Unbound
}

// fits is why g can not be chosen for req, empty if it can.
func (g *gpu) fits(req request.Request) string {
	switch {
	case g.down != "":
		return g.down
	case req.Model != "" && !modelMatches(g.model, req.Model):
		return fmt.Sprintf("is a %s", g.model)
	case req.MemoryBytes > 0 && g.ledger+req.MemoryBytes > g.memory:
		return fmt.Sprintf("%d of %d bytes are reserved, %d more are asked for", g.ledger, g.memory, req.MemoryBytes)
	}
	return overGuaranteed(g.guaranteed, share(req.MinShare))
}

// overGuaranteed is why part can not be guaranteed beside what others have,
// empty if it can.
func overGuaranteed(others, part int64) string {
	if part == 0 || others+part <= ppm {
		return ""
	}
	return fmt.Sprintf("%d%% of its time is guaranteed to others, %d%% more is asked for", others*100/ppm, part*100/ppm)
}

// CanChange is why Changed must not give id the request req now, nil if it may:
// a guarantee that grows has to be admitted on each GPU to which it is bound.
func (e *Engine) CanChange(id ID, req request.Request) error {
	v := e.vgpus[id]
	if v == nil || share(req.MinShare) <= share(v.req.MinShare) {
		return nil
	}
	for _, g := range v.gpus {
		if why := overGuaranteed(g.guaranteed-share(v.req.MinShare), share(req.MinShare)); why != "" {
			return fmt.Errorf("%s: %s", g.uuid, why)
		}
	}
	return nil
}

func share(part float64) int64 { return int64(part*ppm + 0.5) }

func modelMatches(model, want string) bool {
	return strings.Contains(strings.ToLower(model), strings.ToLower(want))
}
