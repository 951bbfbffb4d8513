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
	t     *rapid.T
	e     *Engine
	now   time.Duration
	up    map[UUID]bool
	vgpus map[ID]*tenant
}

type tenant struct {
	id      ID
	req     request.Request
	added   time.Duration
	held    time.Duration
	gpus    []UUID
	waits   bool // a client stands at the closed gate
	open    bool // its gates are open
	revoked bool
	overrun bool
	wanted  bool
	armed   time.Duration
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
			v.gpus = slices.Clone(a.GPUs)
			if slices.Contains(v.gpus[1:], v.gpus[0]) {
				w.t.Fatalf("%s: two devices of one vGPU on one GPU", v.id)
			}
		case Grant:
			if v.revoked {
				w.t.Fatalf("%s granted while it drains", v.id)
			}
			if !v.open {
				w.checkGrant(v)
			}
			v.open = true
		case Take:
			v.wanted = true
		case Keep:
			v.wanted = false
		case Revoke:
			v.open, v.revoked, v.wanted = false, true, false
		case Arm:
			v.armed = a.At
		case Overrun:
			v.overrun = true
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
func (v *tenant) holds() bool { return (v.open || v.revoked) && !v.overrun }

func (w *world) check() {
	holder := make(map[UUID]ID)
	for _, id := range w.ids() {
		if v := w.vgpus[id]; v.holds() {
			for _, g := range v.gpus {
				if other, ok := holder[g]; ok {
					w.t.Fatalf("%s and %s hold %s", other, id, g)
				}
				holder[g] = id
			}
		}
	}
	// Work-conserving: a free GPU has no eligible waiter, unless it is kept for
	// one that waits for other GPUs too.
	// A cap that let go of somebody just now, whose Deadline is on its way,
	// leaves both answers right.
	wanted, either := make(map[ID]bool), make(map[ID]bool)
	kept := make(map[UUID]int)
	waiters := w.waiters()
	for _, v := range waiters {
		// Who is first changes with time alone too, by ageing; a GPU that is
		// kept is looked at when the others come free.
		if len(v.gpus) > 1 {
			for _, g := range v.gpus {
				kept[g]++
			}
		}
	}
	for _, v := range waiters {
		free := true
		due := w.e.vgpus[v.id].deadline
		for _, g := range v.gpus {
			if due != 0 && due <= w.now {
				either[holder[g]] = true
				free = false
				continue
			}
			wanted[holder[g]] = true
			free = free && holder[g] == "" && kept[g] < len(v.gpus)
		}
		if free {
			w.t.Fatalf("%s waits although %v are free", v.id, v.gpus)
		}
	}
	for _, id := range w.ids() {
		v := w.vgpus[id]
		if v.open && v.wanted != wanted[id] && !(v.wanted && either[id]) {
			w.t.Fatalf("%s wanted=%v, want %v", id, v.wanted, wanted[id])
		}
		if v.wanted && v.armed == 0 {
			w.t.Fatalf("%s is wanted and no quantum runs", id)
		}
	}
}

// waiters are those that wait and are not held back by a cap or a lost GPU.
func (w *world) waiters() []*tenant {
	var all []*tenant
	for _, id := range w.ids() {
		v := w.vgpus[id]
		if v.waits && len(v.gpus) > 0 && !v.open && !v.revoked && w.e.eligible(w.now, w.e.vgpus[id]) {
			all = append(all, v)
		}
	}
	return all
}

// checkGrant looks whether somebody should have gone before v.
func (w *world) checkGrant(v *tenant) {
	if m := v.req.MaxShare; m > 0 && m < 1 && float64(v.held) > m*float64(w.now-v.added+w.e.cfg.Window)+1 {
		w.t.Fatalf("%s had %v in %v, with a cap of %v", v.id, v.held, w.now-v.added, m)
	}
	granted := w.e.vgpus[v.id]
	vAged := w.now-granted.pending >= w.e.cfg.Ageing
	for _, u := range w.waiters() {
		if u == v || len(u.gpus) > 1 || !slices.Contains(v.gpus, u.gpus[0]) {
			continue
		}
		waits := w.e.vgpus[u.id]
		uAged := w.now-waits.pending >= w.e.cfg.Ageing
		switch {
		case uAged && !vAged:
			w.t.Fatalf("%s granted before %s, which aged", v.id, u.id)
		case uAged && vAged && waits.pending < granted.pending:
			w.t.Fatalf("%s granted before %s, which aged earlier", v.id, u.id)
		case !vAged && v.req.MinShare == 0 && u.req.Priority > v.req.Priority:
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
	v.open, v.revoked, v.overrun, v.wanted = false, false, false, false
	w.step(Event{Kind: kind, VGPU: v.id, LastWork: last, Idle: idle, Waiting: v.waits})
}

func TestRandomHistoriesKeepTheInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := &world{
			t:     t,
			e:     New(Config{Quantum: 10, DrainDeadline: 30, MinTurn: 2, Ageing: 60, Window: 50}),
			up:    make(map[UUID]bool),
			vgpus: make(map[ID]*tenant),
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
				next++
				w.vgpus[v.id] = v
				w.step(Event{Kind: Added, VGPU: v.id, Request: v.req})
				w.step(Event{Kind: Bind, VGPU: v.id})
			},
			"change": func(t *rapid.T) {
				v := pick(t, func(*tenant) bool { return true })
				count := v.req.Count
				v.req = draw(t)
				v.req.Count, v.added, v.held = count, w.now, 0
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
				v := pick(t, func(v *tenant) bool { return !v.waits && len(v.gpus) > 0 })
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
			"drain": func(t *rapid.T) { w.end(pick(t, func(v *tenant) bool { return v.revoked }), w.now, 0) },
			"die": func(t *rapid.T) {
				v := pick(t, func(v *tenant) bool { return v.open })
				v.waits = false
				w.end(v, 0, 0)
			},
			"unused": func(t *rapid.T) {
				v := pick(t, func(v *tenant) bool { return !v.waits && !v.open && !v.revoked && len(v.gpus) > 0 })
				v.gpus = nil
				w.step(Event{Kind: Unused, VGPU: v.id})
				w.step(Event{Kind: Bind, VGPU: v.id})
			},
			"time passes": func(t *rapid.T) {
				w.now += time.Duration(rapid.IntRange(1, 15).Draw(t, "ns"))
				for _, id := range w.ids() {
					if v := w.vgpus[id]; v.armed != 0 && v.armed <= w.now {
						v.armed = 0
						w.step(Event{Kind: Deadline, VGPU: id})
					}
				}
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
					w.step(Event{Kind: Deadline, VGPU: id})
				}
			}
			for _, id := range w.ids() {
				v := w.vgpus[id]
				if v.open {
					v.waits = false
				}
				if v.revoked || v.open && v.wanted {
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
	}
	if r.MaxShare == 0 {
		r.MinShare = rapid.SampledFrom([]float64{0, 0, 0.2}).Draw(t, "minimum")
	}
	return r
}
