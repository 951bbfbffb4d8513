// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// world is what the engine decides about. It carries out the actions as the
// daemon and the clients would, and checks after every step the invariants of
// docs/design.md section 3 and what the reference says. A history of it is a
// string of bytes: what happens in it follows from them alone.
type world struct {
	e        *Engine
	ref      *reference
	cfg      Config
	now      time.Duration
	up       map[UUID]bool
	cordoned map[UUID]bool
	free     map[UUID]uint64
	policies map[UUID]Policy // of GPUs, and of the node
	gpus     []UUID
	vgpus    map[ID]*tenant
	promises map[string]map[UUID]uint64 // by name
	untold   bool                       // a new engine does not know them yet
	next     int
	plain    bool                   // nobody has a share, a policy or several GPUs
	held     map[UUID]time.Duration // by turns of exclusive vGPUs that are over
	seen     map[string]int         // how often what happened
	trace    *strings.Builder       // nil: not kept
}

type tenant struct {
	id      ID
	gang    string // empty: on its own
	with    string // whose reservation it shares
	req     request.Request
	gpus    []UUID
	binding bool // waits for GPUs
	waits   bool // a client stands at the closed gate
	open    bool // its gates are open
	revoked bool
	overrun bool
	beside  bool // revoked, and does not hold: it was native, or an overrun before a restart
	left    bool // over from before a restart, when it held beside others
	frozen  bool
	wanted  bool
	granted time.Duration
	armed   time.Duration
}

// wrong is what a history ends with that breaks a rule.
type wrong string

func (w *world) fail(format string, args ...any) { panic(wrong(fmt.Sprintf(format, args...))) }

// The layout of a history: a head, then moves of the same length.
const (
	headBytes = 3
	moveBytes = 6
)

// play runs a history and says what was wrong, empty if nothing was. It counts
// in seen what happened, and writes down all of it in trace if there is one.
func play(h []byte, seen map[string]int, trace *strings.Builder) (said string) {
	if len(h) < headBytes {
		return ""
	}
	w := &world{
		cfg: Config{
			Quantum: 10, DrainDeadline: 30, Stall: 8, MinTurn: 2, Ageing: 60, Window: 50, SwitchCost: 10,
			SwapShare: .25, LongestQuantum: 30, Oversubscription: 1 + float64(h[1]/10%2)/2,
			Overrun: request.Overrun(1 + h[0]%3), Binding: Binding(h[1] % 5), Policy: policyOf(h[2] / 4),
		},
		up: make(map[UUID]bool), cordoned: make(map[UUID]bool), free: make(map[UUID]uint64),
		policies: make(map[UUID]Policy), vgpus: make(map[ID]*tenant), promises: make(map[string]map[UUID]uint64), held: make(map[UUID]time.Duration),
		seen: seen, trace: trace, plain: h[1]/5%2 == 0,
	}
	if w.plain {
		w.cfg.Policy = Policy{}
	}
	defer func() {
		if r := recover(); r != nil {
			why, ok := r.(wrong)
			if !ok {
				panic(r)
			}
			said = string(why)
		}
	}()
	for i := range 1 + int(h[2])%4 {
		w.gpus = append(w.gpus, UUID(fmt.Sprintf("g%d", i)))
	}
	w.start()
	for m := h[headBytes:]; len(m) >= moveBytes; m = m[moveBytes:] {
		w.move(m[:moveBytes])
	}
	w.calm()
	return ""
}

// start makes an engine for GPUs that are there.
func (w *world) start() {
	w.e, w.ref = New(w.cfg), newReference(w.cfg)
	w.ref.node = w.cfg.Policy
	for _, g := range w.gpus {
		if _, ok := w.up[g]; !ok {
			w.up[g], w.free[g] = true, 100
		}
		w.step(Event{Kind: GPUUp, GPU: g, MemoryBytes: 100})
		w.step(Event{Kind: GPUMemory, GPU: g, MemoryBytes: w.free[g]})
		if w.cordoned[g] {
			w.step(Event{Kind: Cordon, GPU: g, Reason: "asked for"})
		}
		if !w.up[g] {
			w.step(Event{Kind: GPUDown, GPU: g, Reason: "lost"})
		}
	}
	for _, g := range append([]UUID{""}, w.gpus...) {
		if p, ok := w.policies[g]; ok {
			w.step(Event{Kind: SetPolicy, GPU: g, Policy: p})
		}
	}
}

// restart kills the daemon and starts it again: what it knows then are the words
// and what it had stored, as in vgpu/node/recover.go.
func (w *world) restart(m []byte) {
	w.saw("restart")
	w.untold = true
	w.start()
	for _, name := range promisesDrawn {
		for _, g := range w.gpus {
			if bytes := w.promises[name][g]; bytes > 0 {
				w.step(Event{Kind: Promised, Promise: name, GPU: g, MemoryBytes: bytes})
			}
		}
	}
	w.untold = false
	down := make(map[UUID]bool)
	for _, id := range w.ids() {
		v := w.vgpus[id]
		v.armed, v.frozen = 0, false
		v.left = v.left || v.overrun || v.beside
		v.overrun = false // it drains, that is all that its words say
		for _, g := range v.gpus {
			if !down[g] {
				down[g] = true
				w.step(Event{Kind: GPUDown, GPU: g, Reason: "recovering"})
			}
		}
	}
	for _, id := range w.ids() {
		v := w.vgpus[id]
		w.step(Event{Kind: Added, VGPU: id, Request: v.req, Gang: v.gang, Reservation: v.with})
	}
	// Those that are not draining first.
	adopt := slices.DeleteFunc(w.ids(), func(id ID) bool { return len(w.vgpus[id].gpus) == 0 })
	slices.SortStableFunc(adopt, func(a, b ID) int {
		draining := func(id ID) int { return map[bool]int{true: 1}[w.vgpus[id].revoked] }
		return draining(a) - draining(b)
	})
	for _, id := range adopt {
		v := w.vgpus[id]
		ev := Event{Kind: Adopted, VGPU: id, GPUs: v.gpus, Holding: v.open || v.revoked, Draining: v.revoked, Waiting: v.waits && !v.open}
		if ev.Holding && m[2]%2 == 0 {
			ev.Since = v.granted
		}
		v.wanted = false
		v.beside = v.revoked && slices.ContainsFunc(v.gpus, func(g UUID) bool { return w.ref.holder(g) != nil && w.ref.holder(g) != w.unit(v) })
		if ev.Holding {
			w.saw("adopted in a turn")
			if v.gang != "" {
				w.saw("adopted a gang in a turn")
			}
		}
		w.step(ev)
	}
	for _, g := range w.gpus {
		if down[g] && w.up[g] {
			w.step(Event{Kind: GPUUp, GPU: g, MemoryBytes: 100})
		}
	}
	for _, id := range w.ids() {
		if v := w.vgpus[id]; v.binding {
			v.binding = false
			w.step(Event{Kind: Bind, VGPU: id})
		}
	}
}

func (w *world) saw(what string) {
	if w.seen != nil {
		w.seen[what]++
	}
}

func (w *world) unit(v *tenant) *refUnit { return w.ref.vgpus[v.id].unit }

func (w *world) ids() []ID {
	ids := make([]ID, 0, len(w.vgpus))
	for id := range w.vgpus {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return ids
}

// pick is one of those that may, nil if nobody may.
func (w *world) pick(which byte, may func(*tenant) bool) *tenant {
	var all []*tenant
	for _, id := range w.ids() {
		if v := w.vgpus[id]; may(v) {
			all = append(all, v)
		}
	}
	if len(all) == 0 {
		return nil
	}
	return all[int(which)%len(all)]
}

func (w *world) step(ev Event) {
	if w.trace != nil {
		fmt.Fprintf(w.trace, "%d %s\n", w.now, ev.describe())
	}
	w.saw("event " + kindNames[ev.Kind])
	var leaving *tenant
	if ev.Kind == Removed {
		leaving = w.vgpus[ev.VGPU]
		delete(w.vgpus, ev.VGPU)
	}
	was := make(map[ID]bool) // who was late
	for _, u := range w.ref.units {
		for _, v := range u.members {
			was[v.id] = u.late
		}
	}
	w.ref.event(w.now, ev)
	actions := w.e.Step(w.now, ev)
	var ring []ID
	for _, a := range actions {
		if w.trace != nil {
			fmt.Fprintf(w.trace, "    %s\n", a.describe())
		}
		w.saw("action " + kindNames[a.Kind])
		v := w.vgpus[a.VGPU]
		if v == nil && leaving != nil && a.VGPU == leaving.id {
			v = leaving
		}
		if v == nil {
			w.fail("%s for a vGPU that is gone", a.describe())
		}
		if v == leaving && a.Kind != Account && a.Kind != Arm {
			w.fail("%s for a vGPU that is leaving", a.describe())
		}
		w.act(v, a, ev, was[a.VGPU])
		w.ref.action(a)
		if a.Kind == Overrun && v.waits {
			ring = append(ring, v.id)
		}
	}
	w.ref.end()
	w.check()
	for _, id := range ring { // the doorbell of a thread that stands at the gate of an overrun
		if v := w.vgpus[id]; v != nil && v.waits && !v.open {
			w.step(Event{Kind: Pending, VGPU: id})
		}
	}
}

func (w *world) act(v *tenant, a Action, ev Event, late bool) {
	switch a.Kind {
	case Bound:
		for _, g := range a.GPUs {
			if len(v.gpus) == 0 && (!w.up[g] || w.cordoned[g] || w.reserves(g, v) > w.free[g]+w.beyond()) {
				w.fail("%s bound to %s, which takes none or has no room", v.id, g)
			}
			if len(v.gpus) == 0 && w.guests(g, v) > w.guests(g, nil) && w.promised(g) > 0 {
				w.saw("bound beside what was promised")
			}
			if w.invited(g, v) {
				w.saw("bound to what was promised")
			}
			if home := w.home(v); len(v.gpus) == 0 && home != nil {
				if !slices.Contains(home, g) {
					w.fail("%s bound to %s, and what it shares is reserved on %v", v.id, g, home)
				}
				w.saw("bound to what others reserved")
			}
		}
		v.gpus, v.binding = slices.Clone(a.GPUs), false
		if slices.Contains(v.gpus[1:], v.gpus[0]) {
			w.fail("%s: two devices of one vGPU on one GPU", v.id)
		}
		if len(v.gpus) != v.req.Count {
			w.fail("%s: bound to %v, asked for %d", v.id, v.gpus, v.req.Count)
		}
		for _, g := range v.gpus {
			if ev.Kind == Bind && ev.VGPU == v.id && a.VGPU == v.id && w.e.vgpus[v.id].reason != "" {
				w.fail("%s is bound and has a reason why not", v.id)
			}
			if !request.NamesGPU(v.req.UUIDs, string(g)) {
				w.fail("%s bound to %s, asked for %s", v.id, g, v.req.UUIDs)
			}
		}
	case BindWaits:
		v.binding = true
		if v.req.WhenFull == request.Fail || v.req.Bind == request.BindEarly {
			w.fail("%s waits for a GPU and does not want to", v.id)
		}
	case Unbindable:
		v.binding = false
	case Grant:
		u := w.unit(v)
		switch {
		case v.revoked && !v.overrun && !late:
			w.fail("%s granted while it drains", v.id)
		case v.open && (ev.Kind != Pending || ev.VGPU != v.id):
			w.fail("%s granted, and is open", v.id)
		case !v.open && v.overrun:
			w.saw("late grant")
		case !v.open && u.native:
			w.saw("native grant")
		case !v.open && u.turn == "holds" && len(u.members) > 1:
			w.saw("grant of a gang")
		}
		if !v.open && u.turn == "" {
			for _, m := range u.members {
				if m.id != v.id && m.waits {
					w.saw("a gang waited with two")
				}
			}
		}
		if v.frozen {
			w.saw("thawed")
		}
		if !v.open {
			v.granted = w.now
		}
		if !v.open {
			v.left = false
		}
		v.open, v.revoked, v.overrun, v.frozen, v.beside = true, false, false, false, false
	case Resume:
		if !v.revoked || v.overrun {
			w.fail("%s resumed, and does not drain", v.id)
		}
		waits := false
		for _, m := range w.unit(v).members {
			waits = waits || w.vgpus[m.id].waits
		}
		if !waits {
			w.fail("%s resumed, and nobody stands at its gate", v.id)
		}
		if v.gang != "" {
			w.saw("resume of a gang")
		}
		v.open, v.revoked = true, false
	case Take:
		v.wanted = true
		if a.Linger > 0 {
			w.saw("take with linger")
		}
		if a.Linger < 0 || a.Linger > 4*(w.cfg.SwitchCost+w.unit(v).swap) {
			w.fail("%s lingers for %v", v.id, a.Linger)
		}
	case Keep:
		v.wanted = false
	case Revoke:
		if ev.Kind == SetPolicy || ev.Kind == Changed {
			w.saw("native ends")
		}
		has := slices.ContainsFunc(v.gpus, func(g UUID) bool { return w.ref.holder(g) == w.unit(v) })
		v.open, v.revoked, v.wanted, v.beside = false, true, false, v.beside || !has
	case Arm:
		v.armed = a.At
		if a.At != 0 && a.At < w.now && ev.Kind != Adopted && v.armed != a.At {
			w.fail("%s armed in the past", v.id)
		}
	case Overrun:
		if !v.revoked {
			w.fail("%s overran, and does not drain", v.id)
		}
		if v.gang != "" {
			w.saw("overrun of a gang")
		}
		v.overrun, v.granted, v.frozen = true, w.now, a.Overrun == request.Freeze
		if v.frozen != w.ref.freezes(w.ref.vgpus[v.id]) {
			w.fail("%s is to overrun by %s, asked for %s on a node with %s", v.id, a.Overrun, v.req.Overrun, w.cfg.Overrun)
		}
		if v.req.Overrun > w.cfg.Overrun {
			w.saw("overrun by its own policy")
		}
	case Account:
		t := a.Turn
		if t.Held < 0 || t.Held > w.now-t.Granted || t.Ended > w.now || t.Lingered < 0 {
			w.fail("%s: impossible turn %+v at %v", v.id, t, w.now)
		}
		if t.Late {
			w.saw("late account")
		}
		if r := w.ref.vgpus[v.id]; r != nil && v.gang == "" && !t.Late && !r.unit.native && !v.beside && !v.left {
			for _, g := range v.gpus {
				if w.held[g] += t.Held; w.held[g] > w.now {
					w.fail("%s: %v of held time in %v", g, w.held[g], w.now)
				}
			}
		}
	}
}

// check looks at the gates as they are, and at what the reference says of them.
func (w *world) check() {
	if w.ref.broken != "" {
		w.fail("%s", w.ref.broken)
	}
	if w.recovering() {
		return
	}
	w.agree()
	holder := make(map[UUID]*refUnit)
	for _, id := range w.ids() {
		v := w.vgpus[id]
		u := w.unit(v)
		if v.frozen && v.open {
			w.fail("%s is frozen and open", id)
		}
		if !(v.open || v.revoked) || v.overrun || v.beside || u.native {
			continue
		}
		for _, g := range v.gpus {
			if other := holder[g]; other != nil && other != u {
				w.fail("%s and %s hold %s", other.name, u.name, g)
			}
			holder[g] = u
		}
	}
	for _, u := range w.ref.units {
		first := w.vgpus[u.members[0].id]
		if u.queued && !u.native && w.ref.up(u.gpus()) && w.ref.capped(u) && first.armed == 0 {
			w.fail("%s is capped, and nothing ends that", u.name)
		}
		if u.turn != "holds" || u.native {
			continue
		}
		if u.swap > 0 && u.quantum > w.cfg.Quantum && u.quantum == time.Duration(float64(u.swap)/w.cfg.SwapShare) {
			w.saw("a quantum was raised")
		}
		want, either := w.ref.wanted(u, func(x *refUnit) bool {
			due := w.vgpus[x.members[0].id].armed
			return due != 0 && due <= w.now
		})
		if u.behind() {
			w.saw("a gang waits behind itself")
		}
		for _, m := range u.members {
			if v := w.vgpus[m.id]; v.open && v.wanted != want && !(v.wanted && either) {
				w.fail("%s wanted=%v, want %v", v.id, v.wanted, want)
			}
		}
		if want && first.armed == 0 {
			w.fail("%s is wanted, and no quantum runs", u.name)
		}
		if at, known := w.ref.ends(u); want && known && max(first.armed, w.now) != max(at, w.now) {
			w.fail("the turn of %s ends at %d, want %d", u.name, first.armed, at)
		} else if want && known && at < u.granted+u.quantum && at > u.granted+w.cfg.MinTurn {
			w.saw("a turn ends early for a brief one")
		}
		if u.max > 0 && u.max < 1e6 && (first.armed == 0 || first.armed > w.now+200) {
			w.fail("%s has a cap, and nothing ends its turn: %d", u.name, first.armed)
		}
	}
	// Who is bound where, and how much of each GPU is promised.
	for _, g := range w.gpus {
		ledger, guaranteed := w.ledger(g), 0
		// Whatever comes, what was promised of it is there.
		if promised, guests := w.promised(g), w.guests(g, nil); promised+guests > 100+w.beyond() {
			w.fail("%s: %d of %d bytes are promised, and %d reserved by others", g, promised, 100+w.beyond(), guests)
		}
		for _, id := range w.ids() {
			if v := w.vgpus[id]; slices.Contains(v.gpus, g) {
				guaranteed += w.ref.vgpus[id].min
			}
		}
		if ledger > 100+w.beyond() {
			w.fail("%s: %d of %d bytes are reserved", g, ledger, 100+w.beyond())
		}
		if ledger > 100 {
			w.saw("memory oversubscribed")
		}
		if guaranteed > 1e6 {
			w.fail("%s: %d ppm are guaranteed", g, guaranteed)
		}
		if s := w.e.gpus[g]; s != nil && (s.ledger != ledger || s.guaranteed != int64(guaranteed)) {
			w.fail("%s: ledger %d, guaranteed %d; want %d, %d", g, s.ledger, s.guaranteed, ledger, guaranteed)
		}
		if s := w.e.gpus[g]; s != nil && (s.promised() != w.promised(g) || s.guests != w.guests(g, nil)) {
			w.fail("%s: promised %d, guests %d; want %d, %d", g, s.promised(), s.guests, w.promised(g), w.guests(g, nil))
		}
	}
	for _, id := range w.ids() {
		if v := w.vgpus[id]; v.binding && v.req.Count == 1 {
			for _, g := range w.gpus {
				if w.room(g, v) {
					w.fail("%s waits for a GPU, and %s has room", id, g)
				}
			}
		}
	}
	for _, id := range w.ids() {
		s, _ := w.e.VGPU(id)
		if v := w.vgpus[id]; (len(v.gpus) > 0) != (s.State != Unbound) {
			w.fail("%s is %s and bound to %v", id, s.State, v.gpus)
		}
		if v := w.vgpus[id]; v.open && s.State != Holding {
			w.fail("%s is open and %s", id, s.State)
		}
	}
}

// beyond is how much may be reserved of a GPU beyond its 100 bytes.
func (w *world) beyond() uint64 { return uint64(100*w.cfg.Oversubscription) - 100 }

// ledger is how much of g is reserved: for each alone, and once for those that share.
func (w *world) ledger(g UUID) (sum uint64) {
	together := make(map[string]uint64)
	for _, v := range w.vgpus {
		switch {
		case !slices.Contains(v.gpus, g):
		case v.with == "":
			sum += v.req.MemoryBytes
		default:
			together[v.with] = max(together[v.with], v.req.MemoryBytes)
		}
	}
	for _, bytes := range together {
		sum += bytes
	}
	return sum
}

// promised is how much of g is.
func (w *world) promised(g UUID) (sum uint64) {
	for _, p := range w.promises {
		sum += p[g]
	}
	return sum
}

// guests is how much of g is reserved there by those to whom it was not promised, also
// once v is bound there if it is not nil. What two of them were promised counts for those
// first who were promised nothing else.
func (w *world) guests(g UUID, v *tenant) uint64 {
	ledger, reserved := uint64(0), make(map[string]uint64)
	for _, o := range w.vgpus {
		switch {
		case o != v && !slices.Contains(o.gpus, g):
		case o.with == "":
			ledger += o.req.MemoryBytes
		default:
			reserved[o.with] = max(reserved[o.with], o.req.MemoryBytes)
		}
	}
	p, q, both := reserved["p"], reserved["q"], reserved["p q"]
	restP, restQ := w.promises["p"][g], w.promises["q"][g]
	p, restP = p-min(p, restP), restP-min(p, restP)
	q, restQ = q-min(q, restQ), restQ-min(q, restQ)
	return ledger + p + q + both - min(both, restP+restQ)
}

// reserves is how much more of g is reserved once v is bound there.
func (w *world) reserves(g UUID, v *tenant) uint64 {
	most := uint64(0)
	for _, other := range w.vgpus {
		if other != v && v.with != "" && other.with == v.with && slices.Contains(other.gpus, g) {
			most = max(most, other.req.MemoryBytes)
		}
	}
	return v.req.MemoryBytes - min(v.req.MemoryBytes, most)
}

// home is where v has to go since others that it shares with are there; nil: anywhere.
func (w *world) home(v *tenant) (home []UUID) {
	for _, g := range w.gpus {
		if v.with != "" && w.up[g] && w.pick(0, func(o *tenant) bool { return o != v && o.with == v.with && slices.Contains(o.gpus, g) }) != nil {
			home = append(home, g)
		}
	}
	if len(home) < v.req.Count {
		return nil
	}
	return home
}

// room says whether v could be bound to g.
func (w *world) room(g UUID, v *tenant) bool {
	more, home := w.reserves(g, v), w.home(v)
	if now, then := w.guests(g, nil), w.guests(g, v); then > now && w.promised(g)+then > 100+w.beyond() {
		return false
	}
	guaranteed := w.ref.settings(&refVGPU{req: v.req, gpus: []UUID{g}}).min
	needs := guaranteed > 0
	for _, id := range w.ids() {
		if slices.Contains(w.vgpus[id].gpus, g) {
			guaranteed += w.ref.vgpus[id].min
		}
	}
	return w.up[g] && !w.cordoned[g] && request.NamesGPU(v.req.UUIDs, string(g)) &&
		(home == nil || slices.Contains(home, g)) && (more == 0 || w.ledger(g)+more <= 100+w.beyond() && more <= w.free[g]+w.beyond()) && (!needs || guaranteed <= 1e6)
}

// agree holds what the engine orders by against what the reference worked out.
func (w *world) agree() {
	for _, u := range w.ref.units {
		t := w.e.vgpus[u.members[0].id].gang
		switch {
		case u.queued != (t.state == Waiting):
			w.fail("%s waits: %v; in the engine it is %s", u.name, u.queued, t.state)
		case u.queued && (u.start != t.start || u.pending != t.pending):
			w.fail("%s starts at %d and waits since %d; in the engine %d, %d", u.name, u.start, u.pending, t.start, t.pending)
		case u.finish != t.finish:
			w.fail("%s ended at %d; in the engine %d", u.name, u.finish, t.finish)
		}
		for _, v := range u.members {
			if h := w.e.vgpus[v.id].habit; h.burst != v.begun || h.usual != v.usual || h.rest != v.rest {
				w.fail("%s has begun %d, computes %d and rests for %d; in the engine %+v", v.id, v.begun, v.usual, v.rest, h)
			}
		}
	}
	for g, s := range w.ref.gpus {
		for class, at := range s.clock {
			if is := w.e.gpus[g].virtual[class-request.Low]; is != at {
				w.fail("it is %d on %s for class %s; in the engine %d", at, g, class, is)
			}
		}
	}
}

// recovering says whether not all vGPUs were adopted yet.
func (w *world) recovering() bool {
	return w.untold || slices.ContainsFunc(w.ids(), func(id ID) bool {
		r := w.ref.vgpus[id]
		return r == nil || len(r.gpus) != len(w.vgpus[id].gpus)
	})
}

// end releases v's turn as the daemon would.
func (w *world) end(v *tenant, last, idle time.Duration) {
	kind := Complete
	if v.revoked {
		kind = Drained
	}
	gaps := &Gaps{3: 3}
	if idle > 20 {
		gaps = &Gaps{9: 20}
	}
	v.open, v.revoked, v.overrun, v.frozen, v.wanted = false, false, false, false, false
	w.step(Event{Kind: kind, VGPU: v.id, LastWork: last, Idle: idle, Lingered: idle, Waiting: v.waits, Gaps: gaps})
	v.beside, v.left = false, false
}

// deadlines reports those that are due.
func (w *world) deadlines(progress byte) {
	for _, id := range w.ids() {
		v := w.vgpus[id]
		if v == nil || v.armed == 0 || v.armed > w.now {
			continue
		}
		v.armed = 0
		w.step(Event{
			Kind: Deadline, VGPU: id, Waiting: v.waits,
			Progress: progress&1 != 0, Advanced: progress&8 != 0, Idle: time.Duration(progress >> 1 & 3), Lingered: time.Duration(progress >> 4 & 3),
		})
		progress = progress>>1 | progress<<7
	}
}

var presetsDrawn = []request.Preset{
	request.Default, request.Default, request.Default, request.Native, request.Fair,
	request.Weighted, request.Hybrid, request.OnlineOffline, request.Average, request.Fixed,
}

func policyOf(b byte) Policy {
	return Policy{Preset: presetsDrawn[int(b)%len(presetsDrawn)], Slots: []int{0, 4, 10}[b%3]}
}

// overrunOf draws from the rest of a byte that drew two things of four.
func overrunOf(who byte) request.Overrun {
	return request.Overrun([]int{0, 0, 0, 0, 1, 2, 3}[who/16%7])
}

// requestOf draws a request from four bytes.
func (w *world) requestOf(b []byte) request.Request {
	digit := func(i, n int) int {
		d := int(b[i]) % n
		b[i] /= byte(n)
		return d
	}
	b = slices.Clone(b)
	r := request.Request{
		Count:       1 + digit(0, 5)/4,
		Priority:    request.Priority(digit(0, 3) - 1),
		Weight:      []int{0, 1, 50, 400}[digit(0, 4)],
		Quantum:     time.Duration([]int{0, 0, 5, 20}[digit(1, 4)]),
		MemoryBytes: uint64([]int{0, 0, 30, 60}[digit(1, 4)]),
		WhenFull:    request.WhenFull(digit(1, 2)),
		MaxShare:    []float64{0, 0, 0, 0.1, 0.5, 1}[digit(2, 6)],
		Policy:      presetsDrawn[digit(2, 14)%len(presetsDrawn)],
		Bind:        request.Bind(digit(3, 4) / 3),
		UUIDs:       []string{"", "", "", "g0", "g0,g1", "g1,g2,g3"}[digit(3, 6)],
	}
	if r.MaxShare == 0 {
		r.MinShare = []float64{0, 0, 0.2, 0.45}[digit(3, 4)]
	}
	if w.plain {
		r.Count, r.MinShare, r.MaxShare, r.Policy = 1, 0, 0, request.Default
	}
	return r
}

// move is one thing that happens.
func (w *world) move(m []byte) {
	who := m[1]
	anybody := func(*tenant) bool { return true }
	switch m[0] % 36 {
	case 0: // with only zeros nothing: what a history is shrunk to
		if v := w.pick(who, anybody); v != nil && m[2] != 0 {
			w.step(Event{Kind: Swaps, VGPU: v.id, Swap: time.Duration([]int{0, 1, 3, 20}[m[2]%4])})
		}
	case 1, 32, 33:
		if len(w.vgpus) >= 7 {
			return
		}
		v := &tenant{id: ID(fmt.Sprintf("v%d", w.next)), req: w.requestOf(m[2:]), gang: []string{"", "", "x", "y"}[who%4], with: []string{"", "", "", "p", "p", "q", "q", "p q"}[who/4%8]}
		v.req.Overrun = overrunOf(who)
		w.next++
		w.vgpus[v.id] = v
		w.step(Event{Kind: Added, VGPU: v.id, Request: v.req, Gang: v.gang, Reservation: v.with})
		w.bind(v)
	case 2:
		if v := w.pick(who, anybody); v != nil {
			req := w.requestOf(m[2:])
			req.Overrun = overrunOf(who)
			req.Count, req.UUIDs, req.Bind = v.req.Count, v.req.UUIDs, v.req.Bind
			if w.e.CanChange(v.id, req) != nil {
				w.saw("change refused")
				return
			}
			v.req = req
			if v.gang != "" {
				w.saw("change of a gang")
			}
			w.step(Event{Kind: Changed, VGPU: v.id, Request: req})
		}
	case 3:
		if v := w.pick(who, anybody); v != nil && m[2]%2 == 0 {
			w.step(Event{Kind: Removed, VGPU: v.id})
		}
	case 4, 5, 6, 7, 8:
		if v := w.pick(who, func(v *tenant) bool { return !v.waits && !v.frozen && len(v.gpus) > 0 }); v != nil {
			v.waits = true
			// One that drains says so when it drained; so may an overrun.
			if v.open || !v.revoked || v.overrun && m[2]%2 == 0 {
				w.step(Event{Kind: Pending, VGPU: v.id})
			}
		}
	case 9, 10:
		if v := w.pick(who, func(v *tenant) bool { return v.waits && v.open }); v != nil {
			v.waits = false
		}
	case 11, 12, 13, 14:
		if v := w.pick(who, func(v *tenant) bool { return v.open && v.wanted && !v.waits }); v != nil {
			w.end(v, time.Duration(m[2])*4, time.Duration(m[3]%60)-5)
		}
	case 15, 16:
		if v := w.pick(who, func(v *tenant) bool { return v.revoked && !v.frozen }); v != nil {
			w.end(v, w.now, time.Duration(m[3]%4))
		}
	case 17: // its processes die
		if v := w.pick(who, func(v *tenant) bool { return v.open || v.revoked }); v != nil {
			v.waits = false
			w.end(v, 0, 0)
		}
	case 18:
		if v := w.pick(who, func(v *tenant) bool {
			return v.binding || !v.waits && !v.open && !v.revoked && len(v.gpus) > 0
		}); v != nil {
			if v.req.Bind == request.BindLate {
				v.gpus, v.binding = nil, false
			}
			w.step(Event{Kind: Unused, VGPU: v.id})
			if m[2]%4 != 0 {
				w.bind(v)
			}
		}
	case 19, 20, 21, 22, 23:
		w.now += 1 + time.Duration(m[2]%15)
		w.deadlines(m[3])
	case 24:
		g := w.gpus[int(who)%len(w.gpus)]
		w.cordoned[g] = !w.cordoned[g]
		w.step(Event{Kind: Cordon, GPU: g, Reason: map[bool]string{true: "asked for"}[w.cordoned[g]]})
	case 25:
		g := append([]UUID{""}, w.gpus...)[int(who)%(1+len(w.gpus))]
		p := policyOf(m[2])
		if w.plain {
			return
		}
		if w.e.CanSetPolicy(g, p) != nil {
			w.saw("policy refused")
			return
		}
		w.policies[g] = p
		w.step(Event{Kind: SetPolicy, GPU: g, Policy: p})
	case 26: // native, and back
		if v := w.pick(who, func(v *tenant) bool { return len(v.gpus) > 0 && !w.plain }); v != nil {
			req := v.req
			if req.Policy = request.Native; v.req.Policy == request.Native {
				req.Policy = request.Default
			}
			if w.e.CanChange(v.id, req) == nil {
				v.req = req
				w.step(Event{Kind: Changed, VGPU: v.id, Request: req})
			}
		}
	case 27:
		g := w.gpus[int(who)%len(w.gpus)]
		w.up[g] = !w.up[g]
		if w.up[g] {
			w.step(Event{Kind: GPUUp, GPU: g, MemoryBytes: 100})
		} else {
			w.step(Event{Kind: GPUDown, GPU: g, Reason: "lost"})
		}
	case 28:
		g := w.gpus[int(who)%len(w.gpus)]
		w.free[g] = uint64(m[2]) % 101
		w.step(Event{Kind: GPUMemory, GPU: g, MemoryBytes: w.free[g]})
	case 29:
		if m[2]%4 == 0 {
			w.restart(m)
		}
	case 30:
		if k := Kind(m[2]); k != GPUUp && k != GPUDown && k != Added && k != SetPolicy {
			w.step(Event{Kind: k, VGPU: "nobody", GPU: "none"})
		}
	case 34, 35: // a scheduler gives memory away, if there is some, or takes it back
		name, g := promisesDrawn[int(who)%len(promisesDrawn)], w.gpus[int(m[2])%len(w.gpus)]
		bytes := uint64([]int{30, 60, 100}[m[3]%3])
		if w.promises[name] == nil {
			w.promises[name] = make(map[UUID]uint64)
		}
		before, guests := w.promises[name][g], w.guests(g, nil)
		w.promises[name][g] = bytes
		if before > 0 || w.promised(g)+w.guests(g, nil) > 100+w.beyond() {
			bytes = 0
			w.promises[name][g] = 0
		}
		if bytes > 0 && w.guests(g, nil) < guests {
			w.saw("promised what was reserved")
		}
		w.step(Event{Kind: Promised, Promise: name, GPU: g, MemoryBytes: bytes})
	case 31: // a message that crossed a decision
		if v := w.pick(who, func(v *tenant) bool { return !v.open && !v.revoked }); v != nil {
			w.step(Event{Kind: []Kind{Complete, Drained, Deadline}[m[2]%3], VGPU: v.id})
		}
	}
}

// promisesDrawn are the promises that there may be, one of them to nobody who comes.
var promisesDrawn = []string{"p", "q", "r"}

// invited says whether v reserves on g what was promised to it there, and was not there.
func (w *world) invited(g UUID, v *tenant) bool {
	return len(v.gpus) == 0 && v.req.MemoryBytes > 0 && slices.ContainsFunc(strings.Fields(v.with), func(p string) bool { return w.promises[p][g] > 0 })
}

func (w *world) bind(v *tenant) {
	before := v.gpus
	w.step(Event{Kind: Bind, VGPU: v.id})
	if len(before) > 0 && !slices.Equal(before, v.gpus) {
		w.fail("%s was bound to %v, and is to %v", v.id, before, v.gpus)
	}
}

// calm ends a history: everybody behaves, and whoever waits is granted in the end,
// who has used more than a cap allows after that many times as long.
func (w *world) calm() {
	for _, g := range w.gpus {
		w.up[g] = true
		w.step(Event{Kind: GPUUp, GPU: g, MemoryBytes: 100})
	}
	waits := func() *tenant { return w.pick(0, func(v *tenant) bool { return v.waits && len(v.gpus) > 0 }) }
	for round := 0; round < 20+4*len(w.vgpus) || round < 1000 && waits() != nil; round++ {
		for _, id := range w.ids() {
			if v := w.vgpus[id]; v.open {
				v.waits = false
			}
		}
		w.now += 500
		w.deadlines(0)
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
	if v := waits(); v != nil {
		w.fail("%s waits for ever", v.id)
	}
}

var kindNames = map[Kind]string{
	Added: "added", Removed: "removed", Changed: "changed", Bind: "bind", Unused: "unused", Pending: "pending",
	Complete: "complete", Drained: "drained", Deadline: "deadline", GPUUp: "gpu-up", GPUDown: "gpu-down",
	Cordon: "cordon", GPUMemory: "gpu-memory", SetPolicy: "set-policy", Promised: "promised", Adopted: "adopted", Swaps: "swaps",
	Bound: "bound", BindWaits: "bind-waits", Unbindable: "unbindable", Grant: "grant", Take: "take", Keep: "keep",
	Revoke: "revoke", Resume: "resume", Arm: "arm", Overrun: "overrun", Account: "account",
}

func (ev Event) describe() string {
	s := fmt.Sprintf("%s %s%s", kindNames[ev.Kind], ev.VGPU, ev.GPU)
	if ev.Kind == Added || ev.Kind == Changed {
		s += fmt.Sprintf(" %+v gang=%q reservation=%q", ev.Request, ev.Gang, ev.Reservation)
	}
	if ev.Kind == Promised {
		s += fmt.Sprintf(" %s memory=%d", ev.Promise, ev.MemoryBytes)
	}
	if ev.Kind == SetPolicy {
		s += fmt.Sprintf(" %+v", ev.Policy)
	}
	for _, f := range []struct {
		name string
		is   bool
	}{{"waiting", ev.Waiting}, {"progress", ev.Progress}, {"advanced", ev.Advanced}, {"holding", ev.Holding}, {"draining", ev.Draining}} {
		if f.is {
			s += " " + f.name
		}
	}
	return fmt.Sprintf("%s %v last=%d idle=%d since=%d swap=%d", s, ev.GPUs, ev.LastWork, ev.Idle, ev.Since, ev.Swap)
}
