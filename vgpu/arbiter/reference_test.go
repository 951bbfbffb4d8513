// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// reference says who may hold what, by the rules in order.go and gang.go as
// written there and nothing else. It looks at everybody after each event and
// shares no code with the engine; it is slow and should be obvious. It does not
// decide: it judges each grant of the engine, and whether one is missing.
type reference struct {
	cfg      Config
	now      time.Duration
	node     Policy
	gpus     map[UUID]*refGPU
	vgpus    map[ID]*refVGPU
	units    []*refUnit // in the order in which they came
	arrivals int

	accounts []Turn     // that the event at hand owes
	owners   []ID       // of them
	grants   []ID       // grants that others of the unit had in this step
	overrun  []ID       // likewise
	could    []*refUnit // who could be granted before the event: time alone brought it about
	natives  []*refUnit // that were revoked in this step
	broken   string     // the first thing that was wrong
}

type refGPU struct {
	up     bool
	policy Policy
	clock  map[request.Priority]time.Duration
}

// refUnit is what has turns: a vGPU, or the vGPUs of one name.
type refUnit struct {
	name    string
	members []*refVGPU
	refSettings
	minimum, maximum refBucket
	swap             time.Duration // what the dearest member takes to come back

	queued  bool
	arrival int
	pending time.Duration
	lane    request.Priority // in whose clock start and finish are
	start   time.Duration
	finish  time.Duration

	turn    string // "", holds, drains
	late    bool   // an overrun that has not drained
	has     map[UUID]bool
	granted time.Duration
	ended   time.Duration
	quantum time.Duration // of this turn
	rank    request.Priority
	guarded bool // it was granted by its age or guarantee
	resumes int
	vain    int // resumes that helped nothing, in a row
	drainBy time.Duration
}

type refVGPU struct {
	id   ID
	unit *refUnit
	req  request.Request
	refSettings
	gpus     []UUID
	swap     time.Duration
	waits    bool
	in       bool // its part of the turn is not over
	beside   bool // and drains beside the holder since a restart
	part     bool // it has one
	granted  time.Duration
	idle     time.Duration // as of the last look at its drain
	lingered time.Duration // likewise
	still    bool          // it overran, and is frozen
	resumed  bool          // its drain was, and is not over
	helped   bool          // it got on since

	ended time.Duration // when it last ended a turn by itself; 0: not since it was granted
	begun time.Duration // what it computed of a burst that is not over
	usual time.Duration // what it computes in a burst
	rest  time.Duration // between two
}

type refSettings struct {
	weight, min, max int // shares in millionths
	class            request.Priority
	turn             time.Duration
	native           bool
}

// refBucket holds millionths of nanoseconds.
type refBucket struct {
	rate       int
	level, cap int
	floor      int
	at         time.Duration
}

func (b *refBucket) flow(now time.Duration) {
	if now > b.at {
		b.level = min(b.level+int(now-b.at)*b.rate, b.cap)
		b.at = now
	}
}

func (b *refBucket) use(from, now, used time.Duration) {
	if b.rate == 0 {
		return
	}
	b.flow(from)
	b.level += int(now-b.at)*b.rate - int(used)*1e6
	b.level = min(max(b.level, b.floor), b.cap)
	b.at = now
}

// ns is the level in whole nanoseconds.
func (b *refBucket) ns() int { return floorDiv(b.level, 1e6) }

func floorDiv(a, b int) int {
	if a < 0 && a%b != 0 {
		return a/b - 1
	}
	return a / b
}

func newReference(cfg Config) *reference {
	return &reference{cfg: cfg, gpus: make(map[UUID]*refGPU), vgpus: make(map[ID]*refVGPU)}
}

func (r *reference) fail(format string, args ...any) {
	if r.broken == "" {
		r.broken = fmt.Sprintf(format, args...)
	}
}

// --- what is known of everybody, worked out anew each time ------------------

func (u *refUnit) gpus() []UUID {
	var all []UUID
	for _, v := range u.members {
		for _, g := range v.gpus {
			if !slices.Contains(all, g) {
				all = append(all, g)
			}
		}
	}
	return all
}

func (u *refUnit) any(is func(*refVGPU) bool) bool { return slices.ContainsFunc(u.members, is) }
func (u *refUnit) anyIn() bool                     { return u.any(func(v *refVGPU) bool { return v.in }) }

// helped says whether something of u got on since it was resumed.
func (u *refUnit) helped() bool {
	return u.any(func(v *refVGPU) bool { return v.helped })
}

func (u *refUnit) waits() bool { return u.any(func(v *refVGPU) bool { return v.waits }) }

func (r *reference) holder(g UUID) *refUnit {
	for _, u := range r.units {
		if u.has[g] {
			return u
		}
	}
	return nil
}

func (r *reference) up(gpus []UUID) bool {
	return !slices.ContainsFunc(gpus, func(g UUID) bool { return !r.gpus[g].up })
}

func (r *reference) capped(u *refUnit) bool {
	if u.max == 0 || u.max >= 1e6 {
		return false
	}
	b := u.maximum
	b.flow(r.now)
	return b.ns() < min(b.cap/1e6, int(u.refSettings.turn))
}

// owed is how much of its guarantee u is behind.
func (r *reference) owed(u *refUnit) int {
	if u.min == 0 {
		return 0
	}
	b := u.minimum
	b.flow(r.now)
	return max(b.ns(), 0) * 1e6 / u.min
}

// eligible says whether u competes for free GPUs.
func (r *reference) eligible(u *refUnit) bool {
	return u.queued && !u.native && r.up(u.gpus()) && !r.capped(u)
}

// before is the order of order.go.
func (r *reference) before(a, b *refUnit) bool {
	aged := func(u *refUnit) int {
		if r.now-u.pending >= r.cfg.Ageing {
			return -u.arrival // the longest first
		}
		return -1 << 60
	}
	for _, x := range [][2]int{
		{aged(a), aged(b)},
		{r.owed(a), r.owed(b)},
		{int(a.class), int(b.class)},
		{-int(a.start), -int(b.start)},
		{-a.arrival, -b.arrival},
	} {
		if x[0] != x[1] {
			return x[0] > x[1]
		}
	}
	return false
}

// ahead are those that must have a GPU of u before u: they come before it, and
// are not themselves kept waiting for another GPU by somebody before them.
func (r *reference) ahead(u *refUnit) []*refUnit {
	var all []*refUnit
	for _, w := range r.units {
		if w != u && r.eligible(w) && shares(u.gpus(), w.gpus()) && r.before(w, u) &&
			(len(w.gpus()) == 1 || len(r.ahead(w)) == 0) {
			all = append(all, w)
		}
	}
	return all
}

func shares(a, b []UUID) bool {
	return slices.ContainsFunc(a, func(g UUID) bool { return slices.Contains(b, g) })
}

// mayHold says why u must not be granted now, empty if it may.
func (r *reference) mayHold(u *refUnit) string {
	gpus := u.gpus()
	switch {
	case !u.queued:
		return "does not wait"
	case !r.up(gpus):
		return "has a GPU that is down"
	case u.native:
		return ""
	case r.capped(u):
		return "is capped"
	}
	for _, g := range gpus {
		if h := r.holder(g); h != nil {
			return fmt.Sprintf("waits for %s, which %s holds", g, h.name)
		}
		for _, w := range r.units {
			if w.any(func(v *refVGPU) bool { return v.in && v.beside && slices.Contains(v.gpus, g) }) {
				return fmt.Sprintf("waits for %s, on which %s drains", g, w.name)
			}
		}
	}
	if a := r.ahead(u); len(a) > 0 {
		return fmt.Sprintf("is behind %s", a[0].name)
	}
	return ""
}

// --- virtual time -----------------------------------------------------------

func (u *refUnit) vtime(held time.Duration) time.Duration {
	return held * 100 / time.Duration(u.weight)
}

func (r *reference) advance(g UUID, class request.Priority, to time.Duration) {
	r.gpus[g].clock[class] = max(r.gpus[g].clock[class], to)
}

// contended says whether somebody of class, who may be granted, waits for g.
func (r *reference) contended(g UUID, class request.Priority) bool {
	return slices.ContainsFunc(r.units, func(u *refUnit) bool {
		return r.eligible(u) && u.class == class && slices.Contains(u.gpus(), g)
	})
}

func (r *reference) tag(u *refUnit) {
	if u.lane != u.class {
		u.lane, u.finish = u.class, 0
	}
	u.start = u.finish
	for _, g := range u.gpus() {
		if h := r.holder(g); h != nil && h.lane == u.lane && !r.contended(g, u.lane) {
			r.advance(g, h.lane, h.start+h.vtime(r.now-h.granted))
		}
		u.start = max(u.start, r.gpus[g].clock[u.lane])
	}
}

func (r *reference) enqueue(u *refUnit) {
	r.arrivals++
	u.arrival, u.pending = r.arrivals, r.now
	r.tag(u)
	u.queued = true
}

func (r *reference) charge(u *refUnit, from, used time.Duration) {
	if u.late {
		u.finish += u.vtime(used)
		u.start = max(u.start, u.finish)
		u.minimum.flow(r.now)
		u.maximum.flow(r.now)
		from = r.now
	} else {
		u.finish = u.start + u.vtime(used)
	}
	u.minimum.use(from, r.now, used)
	u.maximum.use(from, r.now, used)
}

// --- settings ---------------------------------------------------------------

func (r *reference) settings(v *refVGPU) refSettings {
	p := r.node
	if len(v.gpus) > 0 && r.gpus[v.gpus[0]].policy.Preset != request.Default {
		p = r.gpus[v.gpus[0]].policy
	}
	if v.req.Policy != request.Default {
		p.Preset = v.req.Policy
	}
	q := v.req
	millionths := func(part float64) int { return int(part*1e6 + .5) }
	slot := 1000000 / 20
	if p.Slots > 0 {
		slot = 1000000 / p.Slots
	}
	bought := millionths(q.MaxShare)
	if bought == 0 {
		bought = millionths(q.MinShare)
	}
	s := refSettings{weight: 100, turn: r.cfg.Quantum, native: p.Preset == request.Native}
	if q.Quantum > 0 {
		s.turn = q.Quantum
	}
	switch p.Preset {
	case request.Default, request.Weighted, request.Hybrid, request.OnlineOffline:
		if q.Weight > 0 {
			s.weight = q.Weight
		}
	}
	switch p.Preset {
	case request.Default:
		s.class, s.min, s.max = q.Priority, millionths(q.MinShare), millionths(q.MaxShare)
	case request.OnlineOffline:
		s.class = request.Low
		if q.Priority == request.High {
			s.class = request.High
		}
	case request.Average:
		s.min, s.max = slot, slot
	case request.Fixed:
		if bought == 0 {
			bought = slot
		}
		s.min, s.max = bought, bought
	case request.Hybrid:
		s.min, s.max = bought, bought
	}
	return s
}

func (r *reference) settle(v *refVGPU) {
	v.refSettings = r.settings(v)
	r.combine(v.unit)
}

// combine: the strongest of all members, the lowest cap.
func (r *reference) combine(u *refUnit) {
	old := u.refSettings
	s := u.members[0].refSettings
	for _, v := range u.members[1:] {
		s.weight, s.min, s.class = max(s.weight, v.weight), max(s.min, v.min), max(s.class, v.class)
		s.turn, s.native = max(s.turn, v.turn), s.native && v.native
		if s.max == 0 || v.max != 0 && v.max < s.max {
			s.max = v.max
		}
	}
	u.swap = 0
	for _, v := range u.members {
		u.swap = max(u.swap, v.swap)
	}
	if u.swap*4 > s.turn { // the share in a history is a quarter
		s.turn = max(s.turn, min(u.swap*4, r.cfg.LongestQuantum))
	}
	u.refSettings = s
	full := func(part int) int { return int(r.cfg.Window) * part / 1e6 * 1e6 }
	if s.min != old.min {
		u.minimum = refBucket{rate: s.min, level: full(s.min), cap: full(s.min), at: r.now}
	}
	u.minimum.floor = -int(s.turn) * 1e6
	if s.max != old.max {
		u.maximum = refBucket{rate: s.max, level: full(s.max), cap: full(s.max), floor: -int(time.Hour) * 1e6, at: r.now}
	}
	if u.queued && u.class != u.lane {
		r.tag(u)
	}
	if u.turn == "holds" && s.native != old.native {
		if s.native {
			clear(u.has)
		} else {
			u.turn = "must drain" // a Revoke of all follows
		}
	}
}

// --- turns ------------------------------------------------------------------

// partEnded takes in the end of v's part of a turn.
func (r *reference) account(v *refVGPU, last, idle, lingered time.Duration) (held time.Duration) {
	u := v.unit
	if u.late && v.still {
		return 0
	}
	t := Turn{Granted: v.granted, Ended: r.now, Late: u.late, Drained: u.late || strings.Contains(u.turn, "drain")}
	if last > 0 {
		t.Ended = min(max(last, v.granted), r.now)
	}
	t.Held = max(t.Ended-t.Granted-max(idle, 0), 0)
	t.Lingered = min(max(lingered, 0), r.now-t.Granted-t.Held)
	r.accounts, r.owners = append(r.accounts, t), append(r.owners, v.id)
	counted := u.ended
	u.ended = max(u.ended, t.Ended, t.Granted+t.Held+t.Lingered)
	switch {
	case len(u.members) == 1:
		r.charge(u, v.granted, t.Held+t.Lingered)
	case u.late: // once for all members
		r.charge(u, v.granted, u.ended-max(counted, v.granted))
	}
	if v.ended = 0; !t.Drained {
		v.ended = t.Ended
	}
	return t.Held
}

// --- bursts, as in brief.go -------------------------------------------------

// arrives: a client of v is at the gate.
func (r *reference) arrives(v *refVGPU) {
	if !v.waits && v.ended != 0 {
		v.rested(r.now-v.ended, r.cfg.MinTurn)
		v.ended = 0
	}
	v.waits = true
}

// quarter moves a mean by a quarter of the way to what came last; the first is the mean.
func quarter(mean *time.Duration, last time.Duration) {
	if *mean == 0 {
		*mean = last
	} else {
		*mean += (last - *mean) / 4
	}
}

// rested: the most that counts is two bursts, or two minimum turns.
func (v *refVGPU) rested(gap, least time.Duration) {
	if v.usual != 0 {
		quarter(&v.rest, min(gap, max(2*v.usual, 2*least)))
	}
}

// computed: a turn may have been several bursts, with rests between them: the gaps that
// are as long as what was computed from one gap to the next.
func (v *refVGPU) computed(held, least time.Duration, ev Event) {
	var lengths []time.Duration
	for i, n := range *ev.Gaps {
		for range n {
			lengths = append(lengths, 1<<i)
		}
	}
	var rests, sum time.Duration
	for _, long := range lengths {
		if long >= held/time.Duration(len(lengths)+1) {
			rests++
			sum += long
		}
	}
	if rests > 0 {
		v.begun = 0
	}
	v.begun += held / (rests + 1)
	switch {
	case v.begun == 0:
	case ev.Kind == Drained: // it may not be over
		v.usual = max(v.usual, v.begun)
	default:
		quarter(&v.usual, v.begun)
		v.begun = 0
		if rests > 0 {
			v.rested(sum/rests, least)
		}
	}
}

// ends says when the turn of u ends for those who wait, if it is known: not where time
// alone changes who may go, or who is next.
func (r *reference) ends(u *refUnit) (at time.Duration, known bool) {
	end := u.granted + u.quantum
	early := min(u.granted+u.swap+r.cfg.MinTurn, end)
	at = end
	if u.resumes > 0 || u.max > 0 || u.behind() {
		return 0, false
	}
	for _, w := range r.units {
		if w == u || !w.queued || w.native || !r.up(w.gpus()) || !shares(sorted(u.has), w.gpus()) {
			continue
		}
		switch {
		case w.min > 0 || w.max > 0 || r.now-w.pending >= r.cfg.Ageing:
			return 0, false
		case u.guarded:
		case w.class > u.rank:
			at = min(at, early)
		case w.class == u.rank && len(r.ahead(w)) == 0:
			at = min(at, max(early, r.endsFor(u, w)))
		}
	}
	return at, true
}

// endsFor is when the turn of u ends for w, which is next, by what w usually computes.
func (r *reference) endsFor(u, w *refUnit) time.Duration {
	v := w.members[0]
	for _, x := range []*refUnit{u, w} {
		if len(x.members) > 1 || len(x.gpus()) > 1 || x.swap > 0 {
			return u.granted + u.quantum
		}
	}
	if v.usual == 0 || v.rest < v.usual || v.rest < r.cfg.MinTurn {
		return u.granted + u.quantum
	}
	// Both have had as much, then.
	even := u.granted + (w.start-u.start)*time.Duration(u.weight)/100
	return max(u.granted+2*v.usual, even)
}

func (r *reference) chargeGang(u *refUnit) {
	if len(u.members) > 1 && !u.late {
		r.charge(u, u.granted, u.ended-u.granted)
	}
}

func (r *reference) release(u *refUnit) {
	for _, g := range sorted(u.has) {
		delete(u.has, g)
		if !r.contended(g, u.lane) {
			r.advance(g, u.lane, u.finish)
		}
	}
}

func (r *reference) endTurn(u *refUnit) {
	r.chargeGang(u)
	r.release(u)
	queued := u.queued
	u.late, u.turn, u.queued = false, "", false
	for _, v := range u.members {
		v.part = false
	}
	switch {
	case len(u.gpus()) == 0 || !u.waits():
	case queued: // keeps its place
		r.tag(u)
		u.queued = true
	default:
		r.enqueue(u)
	}
}

// regroup: the GPUs of u's members changed.
func (r *reference) regroup(u *refUnit) {
	queued := u.queued
	u.queued = false
	for _, g := range sorted(u.has) {
		if !slices.Contains(u.gpus(), g) {
			delete(u.has, g) // nobody of it uses it any more; not the end of a turn
		}
	}
	switch {
	case (u.turn != "" || u.late) && !u.anyIn():
		r.endTurn(u)
	case queued && len(u.gpus()) > 0 && (u.late || u.waits()):
		r.tag(u)
		u.queued = true
	}
}

// sorted are the GPUs of a set, by name.
func sorted(set map[UUID]bool) []UUID {
	var all []UUID
	for g := range set {
		all = append(all, g)
	}
	slices.Sort(all)
	return all
}

func (r *reference) ids() []ID {
	var all []ID
	for id := range r.vgpus {
		all = append(all, id)
	}
	slices.Sort(all)
	return all
}

// --- one step ---------------------------------------------------------------

// event takes in what is about to be given to the engine.
func (r *reference) event(now time.Duration, ev Event) {
	r.now = now
	r.could = nil
	for _, u := range r.units {
		if r.mayHold(u) == "" {
			r.could = append(r.could, u)
		}
	}
	switch ev.Kind {
	case GPUUp:
		if r.gpus[ev.GPU] == nil {
			r.gpus[ev.GPU] = &refGPU{clock: make(map[request.Priority]time.Duration)}
		}
		r.gpus[ev.GPU].up = true
	case GPUDown:
		r.gpus[ev.GPU].up = false
	case SetPolicy:
		if ev.GPU == "" {
			r.node = ev.Policy
		} else {
			r.gpus[ev.GPU].policy = ev.Policy
		}
		for _, id := range r.ids() {
			r.settle(r.vgpus[id])
		}
	case Added:
		v := &refVGPU{id: ev.VGPU, req: ev.Request}
		r.vgpus[v.id] = v
		for _, u := range r.units {
			if ev.Gang != "" && u.name == ev.Gang {
				v.unit = u
			}
		}
		if v.unit == nil {
			v.unit = &refUnit{name: ev.Gang, has: make(map[UUID]bool)}
			if ev.Gang == "" {
				v.unit.name = string(v.id)
			}
			r.units = append(r.units, v.unit)
		}
		v.unit.members = append(v.unit.members, v)
		r.settle(v)
	}
	if v := r.vgpus[ev.VGPU]; v != nil {
		r.about(v, ev)
	}
}

func (r *reference) about(v *refVGPU, ev Event) {
	u := v.unit
	arrive := func() { r.arrives(v) }
	switch ev.Kind {
	case Removed:
		if v.in {
			r.account(v, 0, 0, 0)
		}
		v.in, v.waits, v.part, v.gpus = false, false, false, nil
		r.regroup(u)
		delete(r.vgpus, v.id)
		u.members = slices.DeleteFunc(u.members, func(m *refVGPU) bool { return m == v })
		if len(u.members) == 0 {
			r.units = slices.DeleteFunc(r.units, func(x *refUnit) bool { return x == u })
			return
		}
		r.combine(u)
	case Changed, Swaps:
		before := u.refSettings.turn
		if ev.Kind == Swaps {
			v.swap = ev.Swap
			r.combine(u)
		} else {
			ev.Request.Count = v.req.Count
			v.req = ev.Request
			r.settle(v)
		}
		if u.turn == "holds" && u.resumes == 0 && u.refSettings.turn != before {
			u.quantum = u.refSettings.turn
		}
	case Unused:
		if !v.in && !v.waits && v.req.Bind == request.BindLate {
			v.gpus, v.part = nil, false
			r.regroup(u)
		}
	case Pending:
		if len(v.gpus) == 0 || v.in && u.turn == "holds" {
			return
		}
		arrive()
		if u.turn == "" && !u.queued {
			r.enqueue(u)
		}
	case Complete, Drained:
		if !v.in || (ev.Kind == Complete) != (u.turn == "holds") {
			return
		}
		held := r.account(v, ev.LastWork, ev.Idle, ev.Lingered)
		if !u.late {
			v.computed(held, r.cfg.MinTurn, ev)
		}
		v.in, v.waits = false, v.waits && ev.Waiting
		if ev.Waiting {
			arrive()
		}
		v.resumed, v.helped = false, v.helped || v.resumed
		switch {
		case !u.anyIn():
			r.endTurn(u)
		case u.late && !u.queued && v.waits:
			r.enqueue(u)
		}
	case Deadline:
		if u.turn == "drains" && v.in {
			v.idle, v.lingered, v.helped = ev.Idle, ev.Lingered, v.helped || ev.Advanced
			if v.waits = v.waits && ev.Waiting; ev.Waiting {
				arrive()
			}
		}
	case Adopted:
		v.gpus = slices.Clone(ev.GPUs)
		r.settle(v)
		r.regroup(u)
		if ev.Waiting && (!ev.Holding || ev.Draining) {
			arrive()
		}
		if !ev.Holding {
			if v.waits && u.turn == "" && !u.queued {
				r.enqueue(u)
			}
			return
		}
		u.queued = false
		v.in, v.part, v.granted = true, true, r.now
		if 0 < ev.Since && ev.Since < r.now {
			v.granted = ev.Since
		}
		free := !u.native
		for _, g := range v.gpus {
			free = free && (r.holder(g) == nil || r.holder(g) == u)
		}
		if u.turn == "" {
			u.turn, u.lane, u.granted, u.ended, u.resumes, u.vain = "holds", u.class, v.granted, v.granted, 0, 0
			u.rank, u.guarded = u.class, false
			u.quantum = u.refSettings.turn
			// What it had used before the restart is held against nobody.
			u.start -= u.vtime(r.now - u.granted)
			u.minimum.at, u.maximum.at = u.granted, u.granted
		}
		if free {
			for _, g := range v.gpus {
				u.has[g] = true
			}
		}
		if !free && !u.native {
			v.beside = true
		}
		if ev.Draining || u.turn == "drains" || !free && !u.native {
			u.turn = "must drain"
		}
	}
}

// action takes in what the engine answered, in its order.
func (r *reference) action(a Action) {
	if a.Kind == Account {
		r.accounted(a)
		return
	}
	v := r.vgpus[a.VGPU]
	if v == nil {
		return
	}
	u := v.unit
	switch a.Kind {
	case Bound:
		if len(v.gpus) == 0 {
			v.gpus = slices.Clone(a.GPUs)
			r.settle(v)
			r.regroup(u)
		}
	case Grant:
		r.granted(v)
	case Revoke:
		if u.turn != "holds" && u.turn != "must drain" && u.turn != "drains" {
			r.fail("%s revoked, and does not hold", v.id)
		}
		if u.turn == "holds" {
			r.mayRevoke(u)
		}
		if u.resumes == 0 {
			u.drainBy = r.now + r.cfg.DrainDeadline
		}
		u.turn = "drains"
	case Resume:
		if u.turn == "drains" {
			r.resumed(u)
		}
		for _, g := range u.gpus() {
			if h := r.holder(g); h != u && !u.native && v.part && slices.Contains(v.gpus, g) {
				r.fail("%s resumed beside those that hold %s", v.id, g)
			}
		}
		if u.vain > 3 || r.now >= u.drainBy && u.resumes > 1 {
			r.fail("%s resumed once too often", v.id)
		}
	case Overrun:
		r.overran(v)
	}
}

func (r *reference) accounted(a Action) {
	if len(r.accounts) == 0 {
		v := r.vgpus[a.VGPU]
		if v == nil || !v.in || !v.unit.late {
			r.fail("an account of %s, whose turn did not end", a.VGPU)
			return
		}
		// It is granted, and was late until now. What it used meanwhile is known
		// only now: it may be capped by that.
		if v.unit.queued {
			r.start(v.unit)
		}
		r.account(v, 0, 0, 0)
		v.in = false
	}
	want := r.accounts[0]
	want.Waited = a.Turn.Waited
	if r.owners[0] != a.VGPU || want != a.Turn {
		r.fail("account %s %+v, want %s %+v", a.VGPU, a.Turn, r.owners[0], want)
	}
	r.accounts, r.owners = r.accounts[1:], r.owners[1:]
}

// start begins a turn of u: what comes next is a Grant of all its members.
func (r *reference) start(u *refUnit) {
	if why := r.mayHold(u); why != "" {
		r.fail("%s granted, and %s", u.name, why)
	}
	u.rank, u.guarded = u.class, r.now-u.pending >= r.cfg.Ageing || r.owed(u) > 0
	r.grants = nil
	for _, m := range u.members {
		if len(m.gpus) > 0 {
			r.grants = append(r.grants, m.id)
		}
	}
	u.queued = false
	// The clocks: to the smallest tag of its class, unless it has several GPUs.
	for _, g := range u.gpus() {
		at := u.start
		for _, w := range r.units {
			if len(u.gpus()) == 1 && w != u && r.eligible(w) && w.class == u.lane && slices.Contains(w.gpus(), g) {
				at = min(at, w.start)
			}
		}
		if !u.native {
			u.has[g] = true
			r.advance(g, u.lane, at)
		}
	}
	for _, m := range u.members {
		m.resumed, m.helped = false, false
	}
	u.turn, u.granted, u.ended, u.resumes, u.vain = "holds", r.now, r.now, 0, 0
	u.quantum = u.refSettings.turn
}

// resumed: the turn of u goes on, and those of it that had drained have a new part.
func (r *reference) resumed(u *refUnit) {
	u.turn = "holds"
	if u.helped() {
		u.vain = 0
	}
	u.resumes++
	u.vain++
	if u.native {
		clear(u.has) // it became so while it drained
	}
	for _, m := range u.members {
		m.resumed, m.helped = m.in, false
		if m.in {
			m.waits = false
		} else if m.part {
			r.grants = append(r.grants, m.id)
		}
	}
}

func (r *reference) granted(v *refVGPU) {
	u := v.unit
	if u.turn == "drains" && v.part && !v.in {
		r.resumed(u)
	}
	switch {
	case slices.Contains(r.grants, v.id):
		r.grants = slices.DeleteFunc(r.grants, func(id ID) bool { return id == v.id })
	case u.turn == "holds":
		if !v.part && !u.native {
			r.fail("%s granted in the middle of a turn in which it has no part", v.id)
		}
		if v.in { // told once more
			return
		}
	default:
		r.start(u)
		r.grants = slices.DeleteFunc(r.grants, func(id ID) bool { return id == v.id })
	}
	if v.in && u.late && !v.still {
		r.fail("%s granted, and what it used since its overrun was not accounted", v.id)
	}
	v.in, v.beside, v.part, v.waits, v.granted, v.ended = true, false, true, false, r.now, 0
	if len(r.grants) == 0 {
		u.late = false
	}
}

// freezes says whether an overrun of v is frozen: its own policy counts if it is
// stricter than the node's.
func (r *reference) freezes(v *refVGPU) bool {
	is := map[request.Overrun]bool{r.cfg.Overrun: true, v.req.Overrun: true}
	return is[request.Freeze] && !is[request.Kill]
}

func (r *reference) overran(v *refVGPU) {
	u, still := v.unit, false
	if len(r.overrun) > 0 {
		if r.overrun[0] != v.id {
			r.fail("overrun of %s, want %s", v.id, r.overrun[0])
		}
		r.overrun = r.overrun[1:]
		return
	}
	if u.turn != "drains" {
		r.fail("%s overran, and does not drain", v.id)
	}
	alone := !u.any(func(v *refVGPU) bool {
		return v.part && slices.ContainsFunc(v.gpus, func(g UUID) bool { return !u.has[g] })
	})
	if r.now < u.drainBy && alone && (u.vain < 3 || u.helped()) {
		r.fail("%s overran, and could be resumed", v.id)
	}
	for _, m := range u.members {
		if m.in {
			if m != v {
				r.overrun = append(r.overrun, m.id)
			}
			r.account(m, 0, m.idle, m.lingered)
			m.granted, m.beside, m.begun = r.now, false, 0
			m.still = r.freezes(m)
			still = still || m.still
		}
	}
	r.chargeGang(u)
	u.turn, u.late = "", true
	r.release(u)
	if still || u.waits() {
		r.enqueue(u)
	}
}

// mayRevoke: only because somebody waits and the quantum is over, or one that
// goes before waits and the minimum turn is over, or the cap is used up.
func (r *reference) mayRevoke(u *refUnit) {
	if u.native { // until the Bound of a member that comes, and needs turns
		r.natives = append(r.natives, u)
		return
	}
	passed := r.now - u.granted
	if u.max > 0 && u.max < 1e6 {
		b := u.maximum
		b.flow(u.granted)
		if u.resumes > 0 || b.level+int(passed)*b.rate-int(passed)*1e6 < 3e6 { // the engine rounds down
			return
		}
	}
	for _, w := range r.units {
		if w == u || !r.eligible(w) || !shares(sorted(u.has), w.gpus()) {
			continue
		}
		if u.resumes > 0 || passed >= u.quantum || passed >= u.swap+r.cfg.MinTurn && (w.class > u.class || w.min > 0 || r.now >= r.endsFor(u, w)) || u.changed(r) {
			return
		}
	}
	if u.behind() && passed >= u.quantum {
		return
	}
	r.fail("%s revoked after %v of %v, and nobody is to go before it", u.name, passed, u.quantum)
}

// changed says whether the class at the grant may have been another.
func (u *refUnit) changed(r *reference) bool {
	return u.lane != u.class && r.now-u.granted >= r.cfg.MinTurn
}

// behind says whether a member waits that has no part in the turn.
func (u *refUnit) behind() bool {
	return u.any(func(v *refVGPU) bool { return v.waits && !v.part })
}

// wanted says whether somebody waits for what u holds. Where a cap let go of
// somebody by time alone both answers are right, until the engine hears of it.
func (r *reference) wanted(u *refUnit, due func(*refUnit) bool) (yes, either bool) {
	for _, w := range r.units {
		if w != u && r.eligible(w) && shares(sorted(u.has), w.gpus()) {
			if due(w) {
				either = true
			} else {
				yes = true
			}
		}
	}
	return yes || u.behind(), either
}

// end judges what is the case after the step.
func (r *reference) end() {
	if len(r.accounts) > 0 {
		r.fail("no account of %s: %+v", r.owners[0], r.accounts[0])
	}
	if len(r.grants) > 0 {
		r.fail("others of its gang were granted, %s was not", r.grants[0])
	}
	if len(r.overrun) > 0 {
		r.fail("no overrun of %s", r.overrun[0])
	}
	for _, u := range r.natives {
		if u.native {
			r.fail("%s revoked, which needs no turns", u.name)
		}
	}
	r.natives = nil
	for _, u := range r.units {
		if u.turn == "must drain" {
			r.fail("%s must drain, and was not revoked", u.name)
		}
		// What time alone made possible the engine sees with the next event
		// that has to do with the GPU: until then both answers are right.
		if r.mayHold(u) == "" && !slices.Contains(r.could, u) {
			r.fail("%s waits for %v and could be granted", u.name, u.gpus())
		}
		for _, v := range u.members {
			if u.native && u.turn == "holds" && v.waits && r.up(v.gpus) {
				r.fail("%s waits in a turn that needs no free GPU", v.id)
			}
		}
	}
}
