// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

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

// bind chooses the GPUs of v. If there are none for it, it waits for some,
// unless it does not want to or can not: whoever binds at Create has no time.
func (e *Engine) bind(now time.Duration, v *vgpu) {
	switch {
	case len(v.gpus) > 0:
		e.do(Action{Kind: Bound, VGPU: v.id, GPUs: v.uuids})
	case v.binding:
		e.do(Action{Kind: BindWaits, VGPU: v.id, Reason: v.reason})
	case e.tryBind(now, v):
	case v.req.WhenFull == request.Fail || v.req.Bind == request.BindEarly:
		e.do(Action{Kind: Unbindable, VGPU: v.id, Reason: v.reason})
	default:
		v.binding = true
		e.unbound = append(e.unbound, v)
		e.do(Action{Kind: BindWaits, VGPU: v.id, Reason: v.reason})
	}
}

// bindWaiting tries again for those that wait, in the order in which they asked.
// One that still does not fit does not hold up the next.
func (e *Engine) bindWaiting(now time.Duration) {
	e.room = false
	waiting := e.unbound
	e.unbound = e.unbound[:0]
	for _, v := range waiting {
		before := v.reason
		switch {
		case e.tryBind(now, v):
			v.binding = false
			continue
		case v.req.WhenFull == request.Fail: // since a live update
			v.binding = false
			e.do(Action{Kind: Unbindable, VGPU: v.id, Reason: v.reason})
			continue
		}
		e.unbound = append(e.unbound, v)
		if v.reason != before {
			e.do(Action{Kind: BindWaits, VGPU: v.id, Reason: v.reason})
		}
	}
}

func (e *Engine) tryBind(now time.Duration, v *vgpu) bool {
	var fit []*gpu
	settled := e.settled(v)
	for _, g := range e.order {
		if e.fits(g, v, settled) == "" {
			fit = append(fit, g)
		}
	}
	e.sort(fit, v)
	// Members of a gang run at the same time, best on GPUs of their own.
	slices.SortStableFunc(fit, func(a, b *gpu) int { return v.gang.living(a) - v.gang.living(b) })
	chosen := e.choose(v, fit)
	if chosen == nil {
		v.reason = e.whyUnbindable(v, len(fit), settled)
		return false
	}
	for _, g := range chosen {
		e.attach(v, g)
	}
	v.reason = ""
	e.room = e.room || v.reservation.waits() // it is there for them as well
	// Before what follows from it: its GPU's policy may let others in.
	e.do(Action{Kind: Bound, VGPU: v.id, GPUs: v.uuids})
	e.settle(now, v)
	e.regroup(now, v.gang)
	return true
}

// choose is the first GPUs of fit that v can have together: the policy of its
// first GPU is in force on all of them. nil: there are none.
func (e *Engine) choose(v *vgpu, fit []*gpu) []*gpu {
	for _, first := range fit {
		part := e.policyOn(first, v).settings(v.req, e.cfg.Quantum).min
		chosen := []*gpu{first}
		for _, g := range fit {
			if g != first && len(chosen) < v.req.Count && overGuaranteed(g.guaranteed, part) == "" {
				chosen = append(chosen, g)
			}
		}
		if len(chosen) == v.req.Count {
			return chosen
		}
	}
	return nil
}

// living is how many members of t are bound to g.
func (t *gang) living(g *gpu) int {
	n := 0
	for _, v := range t.members {
		if slices.Contains(v.gpus, g) {
			n++
		}
	}
	return n
}

// unused: no process of v knows its GPUs (any more).
func (e *Engine) unused(now time.Duration, v *vgpu) {
	switch {
	case v.binding:
		e.detach(now, v)
	case v.in || v.waits || v.req.Bind == request.BindEarly:
	default:
		e.detach(now, v)
	}
}

// sort puts GPUs that are in inventory order into the order of the policy for v.
// Where that makes no difference, a guest is not made of it.
func (e *Engine) sort(fit []*gpu, v *vgpu) {
	home := func(a, b *gpu) int { return v.reservation.promisedOn(b) - v.reservation.promisedOn(a) }
	switch e.cfg.Binding {
	case FirstFit:
	case Random:
		e.random.Shuffle(len(fit), func(i, j int) { fit[i], fit[j] = fit[j], fit[i] })
	case Pack:
		slices.SortStableFunc(fit, func(a, b *gpu) int { return cmp.Or(b.bound-a.bound, cmp.Compare(b.ledger, a.ledger), home(a, b)) })
	case Spread:
		slices.SortStableFunc(fit, func(a, b *gpu) int { return cmp.Or(a.bound-b.bound, cmp.Compare(a.ledger, b.ledger), home(a, b)) })
	default:
		slices.SortStableFunc(fit, func(a, b *gpu) int { return cmp.Or(a.load()-b.load(), a.bound-b.bound, home(a, b)) })
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

func (e *Engine) whyUnbindable(v *vgpu, fit int, settled bool) string {
	s := fmt.Sprintf("%d of %d GPUs asked for can be had", fit, v.req.Count)
	for _, g := range e.order {
		if why := e.fits(g, v, settled); why != "" {
			s += fmt.Sprintf("; %s: %s", g.uuid, why)
		}
	}
	return s
}

func (e *Engine) attach(v *vgpu, g *gpu) {
	g.bound++
	g.guaranteed += v.min
	e.reserves(v, []*gpu{g}, func() { v.gpus = append(v.gpus, g) })
	v.uuids = append(slices.Clone(v.uuids), g.uuid)
}

// detach takes v from its GPUs, or from the wait for some.
func (e *Engine) detach(now time.Duration, v *vgpu) {
	if v.binding {
		v.binding, v.reason = false, ""
		e.unbound = slices.DeleteFunc(e.unbound, func(other *vgpu) bool { return other == v })
	}
	left := v.gpus
	for _, g := range left {
		g.bound--
		g.guaranteed -= v.min
	}
	e.reserves(v, left, func() { v.gpus, v.uuids, v.part = nil, nil, false })
	e.regroup(now, v.gang)
	e.room = true
}

// fits is why g can not be chosen for v, empty if it can. settled is e.settled(v).
func (e *Engine) fits(g *gpu, v *vgpu, settled bool) string {
	req := &v.req
	switch {
	case g.down != "":
		return g.down
	case g.cordon != "":
		return g.cordon
	case req.Model != "" && !modelMatches(g.model, req.Model):
		return fmt.Sprintf("is a %s", g.model)
	case !request.NamesGPU(req.UUIDs, string(g.uuid)):
		return "is not among those named"
	case settled && !v.reservation.livesOn(g):
		return "what it shares with others is reserved elsewhere"
	}
	if why := e.lacks(g, v); why != "" {
		return why
	}
	return overGuaranteed(g.guaranteed, e.policyOn(g, v).settings(v.req, e.cfg.Quantum).min)
}

func quantity(n uint64) string { return request.FormatBytes(n) }

// overGuaranteed is why part can not be guaranteed beside what others have,
// empty if it can.
func overGuaranteed(others, part int64) string {
	if part == 0 || others+part <= ppm {
		return ""
	}
	return fmt.Sprintf("%d%% of its time is guaranteed to others, %d%% more is asked for", others*100/ppm, part*100/ppm)
}

// CanChange is why Changed must not give id the request req now, nil if it may:
// memory and a guarantee that grow have to be admitted on each GPU to which it is
// bound.
func (e *Engine) CanChange(id ID, req request.Request) error {
	v := e.vgpus[id]
	if v == nil {
		return nil
	}
	for _, g := range v.gpus {
		if more := req.MemoryBytes; more > v.req.MemoryBytes {
			there := v.reservation.on(g)
			if others := g.ledger - there; more > g.memory || others+max(more, there) > g.memory+g.beyond {
				return fmt.Errorf("%s: %s of %s of memory are reserved for others, %s are asked for", g.uuid, quantity(others), quantity(g.memory+g.beyond), quantity(more))
			}
			if why := e.breaks(g, v, more); why != "" {
				return fmt.Errorf("%s: %s", g.uuid, why)
			}
		}
		changed := &vgpu{req: req, gpus: v.gpus}
		if part := e.policy(changed).settings(req, e.cfg.Quantum).min; part > v.min {
			if why := overGuaranteed(g.guaranteed-v.min, part); why != "" {
				return fmt.Errorf("%s: %s", g.uuid, why)
			}
		}
	}
	return nil
}

func share(part float64) int64 { return int64(part*ppm + 0.5) }

func modelMatches(model, want string) bool {
	return strings.Contains(strings.ToLower(model), strings.ToLower(want))
}

// adopted takes in a vGPU that was bound before a restart.
func (e *Engine) adopted(now time.Duration, v *vgpu, ev Event) {
	if len(v.gpus) > 0 {
		return
	}
	for _, uuid := range ev.GPUs {
		g := e.gpus[uuid]
		if g == nil { // it was there before the restart; nothing is granted on it
			g = &gpu{uuid: uuid, down: "not found since the restart"}
			e.gpus[uuid] = g
			e.order = append(e.order, g)
		}
		e.attach(v, g)
	}
	t := v.gang
	e.settle(now, v)
	e.regroup(now, t)
	known := 0 < ev.Since && ev.Since < now
	if ev.Waiting && !(ev.Holding && !ev.Draining) {
		e.arrive(now, v)
	}
	if !ev.Holding {
		if v.waits && known {
			v.since = ev.Since
		}
		if v.waits && t.state == Idle {
			e.enqueue(now, t)
			t.pending = v.since
		}
		e.catchUp(now, t)
		return
	}
	if t.state == Waiting {
		e.dequeue(t)
	}
	v.in, v.part, v.granted, v.waited = true, true, now, ev.Waited
	if known {
		v.granted = ev.Since
	}
	free := !t.native
	for _, g := range v.gpus {
		free = free && (g.holder == nil || g.holder == t)
	}
	if t.state != Holding && t.state != Draining {
		t.granted, t.ended, t.end = v.granted, v.granted, v.granted+t.quantum
		t.rank, t.lane, t.guarded, t.taking = t.class, t.class, false, false
		t.resumes, t.vain = 0, 0
		t.state = Holding
		// All of the turn is accounted. Against others it counts from now on, as
		// what these had used is not known any more.
		t.start -= t.vtime(now - t.granted)
		t.minimum.at, t.maximum.at = t.granted, t.granted
		t.gpus = nil // those of members that do not hold come with the next turn
	}
	for _, g := range v.gpus {
		if free {
			g.holder = t
		}
		if !slices.Contains(t.gpus, g) {
			t.gpus = append(t.gpus, g)
		}
	}
	e.touch(t)
	if !free && !t.native { // from now on both are waited for
		for _, g := range v.gpus {
			g.beside++
		}
		v.beside = true
	}
	// Not free: it was an overrun before the restart.
	switch {
	case ev.Draining, t.state == Draining, !free && !t.native:
		e.revoke(now, t)
	case t.taking:
		e.take(v)
	}
}

// besideNoMore: what v drains beside the holders of its GPUs is over, or late.
func (e *Engine) besideNoMore(v *vgpu) {
	if !v.beside {
		return
	}
	v.beside = false
	for _, g := range v.gpus {
		g.beside--
		e.touchGPU(g)
	}
}
