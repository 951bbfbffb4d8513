// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// world is what the engine decides about: it carries out the actions as the
// daemon and the clients would, and checks the invariants of docs/design.md
// section 3 after every step. It knows nothing of how the engine decides.
type world struct {
	t        *rapid.T
	e        *Engine
	now      time.Duration
	up       map[UUID]bool
	cordoned map[UUID]bool
	vgpus    map[ID]*tenant
	policy   bool // one was set: requests do not say any more who goes first
}

type tenant struct {
	id      ID
	gang    string // empty: on its own
	req     request.Request
	added   time.Duration
	held    time.Duration
	gpus    []UUID
	binding bool // waits for GPUs
	waits   bool // a client stands at the closed gate
	open    bool // its gates are open
	revoked bool
	overrun bool
	frozen  bool
	wanted  bool
	armed   time.Duration
}

func (v *tenant) unit() string {
	if v.gang != "" {
		return v.gang
	}
	return string(v.id)
}

func (w *world) step(ev Event) {
	for _, a := range w.e.Step(w.now, ev) {
		v := w.vgpus[a.VGPU]
		if v == nil { // the account of one that was just removed
			if a.Kind != Account && a.Kind != Arm {
				w.t.Fatalf("%s for a vGPU that is gone", a.describe())
			}
			continue
		}
		switch a.Kind {
		case Bound:
			v.gpus, v.binding = slices.Clone(a.GPUs), false
			if slices.Contains(v.gpus[1:], v.gpus[0]) {
				w.t.Fatalf("%s: two devices of one vGPU on one GPU", v.id)
			}
			for _, g := range v.gpus {
				if !w.up[g] || w.cordoned[g] {
					w.t.Fatalf("%s bound to %s, which takes none", v.id, g)
				}
			}
		case BindWaits:
			v.binding = true
			if v.req.WhenFull == request.Fail {
				w.t.Fatalf("%s waits for a GPU and does not want to", v.id)
			}
		case Unbindable:
			v.binding = false
		case Grant:
			if v.revoked && !v.overrun {
				w.t.Fatalf("%s granted while it drains", v.id)
			}
			if !v.open {
				w.checkGrant(v)
			}
			v.open, v.revoked, v.overrun, v.frozen = true, false, false, false
		case Resume:
			if !v.revoked || v.overrun {
				w.t.Fatalf("%s resumed, and does not drain", v.id)
			}
			if !w.unitWaits(v.unit()) {
				w.t.Fatalf("%s resumed, and nobody stands at its gate", v.id)
			}
			v.open, v.revoked = true, false
		case Take:
			v.wanted = true
			if a.Linger < 0 || a.Linger > 4*w.e.cfg.SwitchCost {
				w.t.Fatalf("%s lingers for %v", v.id, a.Linger)
			}
		case Keep:
			v.wanted = false
		case Revoke:
			v.open, v.revoked, v.wanted = false, true, false
		case Arm:
			v.armed = a.At
		case Overrun:
			v.overrun = true
			v.frozen = w.e.cfg.Overrun == Freeze
		case Account:
			if a.Turn.Held < 0 || a.Turn.Held > w.now-a.Turn.Granted || a.Turn.Ended > w.now {
				w.t.Fatalf("%s: impossible turn %+v at %v", v.id, a.Turn, w.now)
			}
			v.held += a.Turn.Held
		}
	}
	w.check()
}

// holds says whether v keeps its GPUs from others.
func (w *world) holds(v *tenant) bool {
	return (v.open || v.revoked) && !v.overrun && !w.native(v)
}

// native says whether v needs no turns.
func (w *world) native(v *tenant) bool {
	if v.gang != "" {
		return false // the drawn ones are not
	}
	return v.req.Policy == request.Native
}

func (w *world) unitWaits(unit string) bool {
	for _, v := range w.vgpus {
		if v.unit() == unit && v.waits {
			return true
		}
	}
	return false
}

func (q waiter) String() string { return fmt.Sprintf("%+v for %v", *q.any, q.gpus) }

// waiter is one or several vGPUs that wait for a turn together.
type waiter struct {
	any  *tenant // one of them that stands at the gate
	gpus []UUID  // of all of them
}

func (w *world) check() {
	holder := make(map[UUID]string)
	for _, id := range w.ids() {
		v := w.vgpus[id]
		if v.frozen && v.open {
			w.t.Fatalf("%s is frozen and open", id)
		}
		if w.holds(v) {
			for _, g := range v.gpus {
				if other, ok := holder[g]; ok && other != v.unit() {
					w.t.Fatalf("%s and %s hold %s", other, id, g)
				}
				holder[g] = v.unit()
			}
		}
	}
	for unit, gpus := range w.gpus() { // a gang's GPU is kept for its other members
		if w.turn(unit) {
			for _, g := range gpus {
				if holder[g] == "" && w.e.gpus[g].holder != nil {
					holder[g] = unit
				}
			}
		}
	}
	// Work-conserving: a free GPU has no eligible waiter, unless it is kept for
	// one that waits for other GPUs too.
	// A cap that let go of somebody just now, whose Deadline is on its way,
	// leaves both answers right.
	wanted, either := make(map[string]bool), make(map[string]bool)
	kept := make(map[UUID]int)
	waiters := w.waiters()
	for _, q := range waiters {
		// Who is first changes with time alone too, by ageing; a GPU that is
		// kept is looked at when the others come free.
		if len(q.gpus) > 1 {
			for _, g := range q.gpus {
				kept[g]++
			}
		}
	}
	for _, q := range waiters {
		free := true
		due := w.e.vgpus[q.any.id].gang.members[0].armed
		for _, g := range q.gpus {
			if due != 0 && due <= w.now {
				either[holder[g]] = true
				free = false
				continue
			}
			wanted[holder[g]] = true
			free = free && holder[g] == "" && kept[g] < len(w.vgpus)
			free = free && (len(q.gpus) > 1 || kept[g] == 0)
		}
		if free && len(q.gpus) == 1 {
			w.t.Fatalf("%s waits although %v are free: %+v %+v", q.any.id, q.gpus, *q.any, *w.e.vgpus[q.any.id].gang)
		}
	}
	for _, id := range w.ids() {
		v := w.vgpus[id]
		behind := false // a member waits that was bound after the turn began
		for _, u := range w.vgpus {
			behind = behind || u.unit() == v.unit() && u.waits && !u.open && !u.revoked
		}
		if v.open && !w.native(v) && v.wanted != wanted[v.unit()] && !(v.wanted && (either[v.unit()] || behind)) {
			w.t.Fatalf("%s wanted=%v, want %v: %+v %+v; wait: %+v", id, v.wanted, wanted[v.unit()], *v, *w.e.vgpus[id].gang, waiters)
		}
		if v.wanted && w.e.vgpus[id].gang.members[0].armed == 0 {
			w.t.Fatalf("%s is wanted and no quantum runs", id)
		}
	}
}

// turn says whether a member of unit holds.
func (w *world) turn(unit string) bool {
	for _, v := range w.vgpus {
		if v.unit() == unit && w.holds(v) {
			return true
		}
	}
	return false
}

// gpus are the GPUs of all units.
func (w *world) gpus() map[string][]UUID {
	all := make(map[string][]UUID)
	for _, id := range w.ids() {
		v := w.vgpus[id]
		for _, g := range v.gpus {
			if !slices.Contains(all[v.unit()], g) {
				all[v.unit()] = append(all[v.unit()], g)
			}
		}
	}
	return all
}

// waiters are those that wait and are not held back by a cap or a lost GPU.
func (w *world) waiters() []waiter {
	var all []waiter
	seen := make(map[string]bool)
	gpus := w.gpus()
	for _, id := range w.ids() {
		v := w.vgpus[id]
		if (v.waits || v.frozen) && len(v.gpus) > 0 && !v.open && (!v.revoked || v.overrun) && !seen[v.unit()] && !w.turn(v.unit()) &&
			w.e.eligible(w.now, w.e.vgpus[id].gang) {
			seen[v.unit()] = true
			all = append(all, waiter{v, gpus[v.unit()]})
		}
	}
	return all
}

// checkGrant looks whether somebody should have gone before v.
func (w *world) checkGrant(v *tenant) {
	if w.native(v) || v.gang != "" || w.policy {
		return
	}
	if m := v.req.MaxShare; m > 0 && m < 1 && float64(v.held) > m*float64(w.now-v.added+w.e.cfg.Window)+1 {
		w.t.Fatalf("%s had %v in %v, with a cap of %v", v.id, v.held, w.now-v.added, m)
	}
	granted := w.e.vgpus[v.id].gang
	vAged := w.now-granted.pending >= w.e.cfg.Ageing
	for _, q := range w.waiters() {
		u := q.any
		if u == v || len(q.gpus) > 1 || u.gang != "" || !slices.Contains(v.gpus, u.gpus[0]) {
			continue
		}
		waits := w.e.vgpus[u.id].gang
		uAged := w.now-waits.pending >= w.e.cfg.Ageing
		switch {
		case uAged && !vAged:
			w.t.Fatalf("%s granted before %s, which aged", v.id, u.id)
		case uAged && vAged && waits.pending < granted.pending:
			w.t.Fatalf("%s granted before %s, which aged earlier", v.id, u.id)
		case !vAged && v.req.MinShare == 0 && v.req.Policy == request.Default && u.req.Policy == request.Default && u.req.Priority > v.req.Priority:
			w.t.Fatalf("%s granted before %s of a higher class", v.id, u.id)
		}
	}
}

func (w *world) ids() []ID {
	var ids []ID
	for id := range w.vgpus {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// end releases v's turn as the daemon would.
func (w *world) end(v *tenant, last, idle time.Duration) {
	kind := Complete
	if v.revoked {
		kind = Drained
	}
	v.open, v.revoked, v.overrun, v.frozen, v.wanted = false, false, false, false, false
	w.step(Event{Kind: kind, VGPU: v.id, LastWork: last, Idle: idle, Lingered: idle, Waiting: v.waits, Gaps: &Gaps{5: 3}})
}

func TestRandomHistoriesKeepTheInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{
			t: t,
			e: New(Config{
				Quantum: 10, DrainDeadline: 30, Stall: 8, MinTurn: 2, Ageing: 60, Window: 50, SwitchCost: 10,
				Overrun: OverrunPolicy(rapid.IntRange(0, 2).Draw(t, "overrun")),
			}),
			up:       make(map[UUID]bool),
			cordoned: make(map[UUID]bool),
			vgpus:    make(map[ID]*tenant),
		}
		for i := range rapid.IntRange(1, 4).Draw(t, "gpus") {
			g := UUID(fmt.Sprintf("g%d", i))
			w.up[g] = true
			w.step(Event{Kind: GPUUp, GPU: g, MemoryBytes: 100})
		}
		pick := func(t *rapid.T, may func(*tenant) bool) *tenant {
			var ids []ID
			for _, id := range w.ids() {
				if may(w.vgpus[id]) {
					ids = append(ids, id)
				}
			}
			if len(ids) == 0 {
				t.Skip("nobody")
			}
			return w.vgpus[rapid.SampledFrom(ids).Draw(t, "vgpu")]
		}
		next := 0
		t.Repeat(map[string]func(*rapid.T){
			"add and bind": func(t *rapid.T) {
				if len(w.vgpus) >= 6 {
					t.Skip("enough")
				}
				v := &tenant{id: ID(fmt.Sprintf("v%d", next)), added: w.now, req: draw(t)}
				if v.req.Policy != request.Native {
					v.gang = rapid.SampledFrom([]string{"", "", "x", "y"}).Draw(t, "gang")
				}
				next++
				w.vgpus[v.id] = v
				w.step(Event{Kind: Added, VGPU: v.id, Request: v.req, Gang: v.gang})
				w.step(Event{Kind: Bind, VGPU: v.id})
			},
			"change": func(t *rapid.T) {
				v := pick(t, func(*tenant) bool { return true })
				count, policy := v.req.Count, v.req.Policy
				v.req = draw(t)
				v.req.Count, v.added, v.held = count, w.now, 0
				v.req.Policy = policy
				if v.open || v.revoked { // a part of this turn is not the new cap's
					v.held = w.e.vgpus[v.id].granted - w.now
				}
				w.step(Event{Kind: Changed, VGPU: v.id, Request: v.req})
			},
			"remove": func(t *rapid.T) {
				v := pick(t, func(*tenant) bool { return true })
				delete(w.vgpus, v.id)
				w.step(Event{Kind: Removed, VGPU: v.id})
			},
			"come to the gate": func(t *rapid.T) {
				v := pick(t, func(v *tenant) bool { return !v.waits && !v.frozen && len(v.gpus) > 0 })
				v.waits = true
				w.step(Event{Kind: Pending, VGPU: v.id})
			},
			"pass the gate": func(t *rapid.T) {
				pick(t, func(v *tenant) bool { return v.waits && v.open }).waits = false
			},
			"complete": func(t *rapid.T) {
				v := pick(t, func(v *tenant) bool { return v.open && v.wanted && !v.waits })
				w.end(v, time.Duration(rapid.IntRange(0, 1000).Draw(t, "last")), time.Duration(rapid.IntRange(-5, 50).Draw(t, "idle")))
			},
			"drain": func(t *rapid.T) { w.end(pick(t, func(v *tenant) bool { return v.revoked && !v.frozen }), w.now, 0) },
			"die": func(t *rapid.T) {
				v := pick(t, func(v *tenant) bool { return v.open })
				v.waits = false
				w.end(v, 0, 0)
			},
			"unused": func(t *rapid.T) {
				v := pick(t, func(v *tenant) bool {
					return v.binding || !v.waits && !v.open && !v.revoked && len(v.gpus) > 0 && v.req.Bind == request.BindLate
				})
				v.gpus, v.binding = nil, false
				w.step(Event{Kind: Unused, VGPU: v.id})
				w.step(Event{Kind: Bind, VGPU: v.id})
			},
			"time passes": func(t *rapid.T) {
				w.now += time.Duration(rapid.IntRange(1, 15).Draw(t, "ns"))
				for _, id := range w.ids() {
					if v := w.vgpus[id]; v.armed != 0 && v.armed <= w.now {
						v.armed = 0
						w.step(Event{Kind: Deadline, VGPU: id, Waiting: v.waits, Progress: rapid.Bool().Draw(t, "progress"), Idle: 1})
					}
				}
			},
			"cordon": func(t *rapid.T) {
				g := rapid.SampledFrom(w.e.GPUs()).Draw(t, "gpu").UUID
				w.cordoned[g] = !w.cordoned[g]
				why := map[bool]string{true: "asked for"}[w.cordoned[g]]
				w.step(Event{Kind: Cordon, GPU: g, Reason: why})
			},
			"policy": func(t *rapid.T) {
				p := Policy{Preset: rapid.SampledFrom([]request.Preset{request.Default, request.Fair, request.Weighted, request.Hybrid, request.OnlineOffline}).Draw(t, "policy")}
				g := rapid.SampledFrom(w.e.GPUs()).Draw(t, "gpu").UUID
				if w.e.CanSetPolicy(g, p) != nil {
					return
				}
				w.policy = true
				w.step(Event{Kind: SetPolicy, GPU: g, Policy: p})
			},
			"gpu goes": func(t *rapid.T) {
				g := rapid.SampledFrom(w.e.GPUs()).Draw(t, "gpu").UUID
				w.up[g] = false
				w.step(Event{Kind: GPUDown, GPU: g, Reason: "lost"})
			},
			"gpu comes": func(t *rapid.T) {
				g := rapid.SampledFrom(w.e.GPUs()).Draw(t, "gpu").UUID
				w.up[g] = true
				w.step(Event{Kind: GPUUp, GPU: g, MemoryBytes: 100})
			},
			"rubbish": func(t *rapid.T) {
				w.step(Event{
					Kind: Kind(rapid.IntRange(0, 255).Filter(func(k int) bool {
						return k != int(GPUUp) && k != int(GPUDown) && k != int(Added)
					}).Draw(t, "kind")),
					VGPU: "nobody",
				})
			},
		})
		// Whoever waits is granted in the end, if the GPUs are there and
		// everybody behaves.
		for _, g := range w.e.GPUs() {
			w.up[g.UUID] = true
			w.step(Event{Kind: GPUUp, GPU: g.UUID, MemoryBytes: 100})
		}
		for range 50 + 10*len(w.vgpus) {
			for _, id := range w.ids() {
				if v := w.vgpus[id]; v.open {
					v.waits = false
				}
			}
			w.now += 500 // caps let everybody in again
			for _, id := range w.ids() {
				if v := w.vgpus[id]; v.armed != 0 && v.armed <= w.now {
					v.armed = 0
					w.step(Event{Kind: Deadline, VGPU: id, Waiting: v.waits})
				}
			}
			for _, id := range w.ids() {
				v := w.vgpus[id]
				if v.open {
					v.waits = false
				}
				if v.revoked && !v.frozen || v.open && v.wanted {
					w.end(v, w.now, 0)
				}
			}
		}
		for _, id := range w.ids() {
			if v := w.vgpus[id]; v.waits && len(v.gpus) > 0 {
				t.Fatalf("%s waits for ever", id)
			}
		}
	})
}

// The paths of a hand-over allocate nothing.
func TestHandOverAllocatesNothing(t *testing.T) {
	e := New(Config{})
	e.Step(0, Event{Kind: GPUUp, GPU: "g"})
	for _, id := range []ID{"a", "b"} {
		e.Step(0, Event{Kind: Added, VGPU: id, Request: request.Request{Count: 1}})
		e.Step(0, Event{Kind: Bind, VGPU: id})
	}
	now := time.Duration(1)
	turn := func() {
		for _, id := range []ID{"a", "b"} {
			now++
			e.Step(now, Event{Kind: Pending, VGPU: id})
		}
		for _, id := range []ID{"a", "b"} {
			now++
			e.Step(now, Event{Kind: Deadline, VGPU: id})
			e.Step(now, Event{Kind: Complete, VGPU: id, LastWork: now})
		}
	}
	turn()
	if n := testing.AllocsPerRun(100, turn); n != 0 {
		t.Errorf("%v allocations in two turns", n)
	}
}

// One hand-over among so many vGPUs that always wait, on 8 GPUs.
func BenchmarkHandOver(b *testing.B) {
	for _, vgpus := range []int{16, 64, 512} {
		b.Run(fmt.Sprint(vgpus), func(b *testing.B) {
			e := New(Config{})
			const gpus = 8
			for i := range gpus {
				e.Step(0, Event{Kind: GPUUp, GPU: UUID(fmt.Sprint("g", i))})
			}
			for i := range vgpus {
				id := ID(fmt.Sprint("v", i))
				e.Step(0, Event{Kind: Added, VGPU: id, Request: request.Request{Count: 1}})
				e.Step(0, Event{Kind: Bind, VGPU: id})
				e.Step(0, Event{Kind: Pending, VGPU: id})
			}
			holders := make([]ID, gpus)
			for i, g := range e.GPUs() {
				holders[i] = g.Holder
			}
			b.ReportAllocs()
			now := time.Duration(0)
			for i := 0; b.Loop(); i++ {
				now++
				for _, a := range e.Step(now, Event{Kind: Complete, VGPU: holders[i%gpus], LastWork: now, Waiting: true}) {
					if a.Kind == Grant {
						holders[i%gpus] = a.VGPU
					}
				}
			}
		})
	}
}

func draw(t *rapid.T) request.Request {
	r := request.Request{
		Count:    rapid.IntRange(1, 2).Draw(t, "count"),
		Quantum:  time.Duration(rapid.IntRange(0, 20).Draw(t, "quantum")),
		Weight:   rapid.SampledFrom([]int{0, 1, 50, 400}).Draw(t, "weight"),
		Priority: request.Priority(rapid.IntRange(-1, 1).Draw(t, "class")),
		MaxShare: rapid.SampledFrom([]float64{0, 0, 0.1, 0.5, 1}).Draw(t, "cap"),
		Policy:   rapid.SampledFrom([]request.Preset{request.Default, request.Default, request.Default, request.Native}).Draw(t, "own policy"),
		WhenFull: request.WhenFull(rapid.IntRange(0, 1).Draw(t, "when full")),
		Bind:     request.Bind(rapid.SampledFrom([]int{0, 0, 0, 1}).Draw(t, "bind")),

		MemoryBytes: uint64(rapid.SampledFrom([]int{0, 0, 30, 60}).Draw(t, "memory")),
	}
	if r.MaxShare == 0 {
		r.MinShare = rapid.SampledFrom([]float64{0, 0, 0.2}).Draw(t, "minimum")
	}
	return r
}
