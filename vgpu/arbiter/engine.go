// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"math/rand/v2"
	"time"

	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// Config is the node's policy.
type Config struct {
	// Quantum is how long a vGPU that asked for none may hold while others
	// wait.
	Quantum time.Duration
	// DrainDeadline is how long a revoked vGPU may take to drain before it is
	// an overrun.
	DrainDeadline time.Duration
	// MinTurn is how long a turn lasts at least while its vGPU has work, even
	// if a higher class waits.
	MinTurn time.Duration
	// Ageing is how long anybody waits at most behind higher classes and
	// guarantees; the turns before it still end.
	Ageing time.Duration
	// Window is the time over which shares hold: a cap lets a vGPU that was
	// idle use its part of one window at once, a guarantee makes up for at most
	// one window.
	Window time.Duration
	// Binding names the order in which GPUs are tried at bind.
	Binding Binding
	// Seed starts the random binding.
	Seed uint64
}

// The defaults of Config.
const (
	DefaultQuantum       = 20 * time.Millisecond
	DefaultDrainDeadline = 2 * time.Second
	DefaultMinTurn       = 2 * time.Millisecond
	DefaultAgeing        = 5 * time.Second
	DefaultWindow        = time.Second
)

// Engine is the state machine. It is not safe for concurrent use.
type Engine struct {
	cfg      Config
	vgpus    map[ID]*vgpu
	gpus     map[UUID]*gpu
	order    []*gpu // in the order in which they came up
	touched  []*gpu // those on which somebody may go next now
	actions  []Action
	arrivals uint64
	random   *rand.Rand
}

// gpu is a physical GPU.
type gpu struct {
	uuid   UUID
	model  string
	memory uint64
	down   string // why it takes no grants; empty if it does

	holder     *vgpu
	bound      int           // vGPUs that live here
	ledger     uint64        // bytes that they reserved
	guaranteed int64         // the minimum shares that they have, in ppm
	waiting    crowd         // those of them that are pending
	virtual    time.Duration // start tag of who was granted last
	touched    bool
	usage      Usage
}

// vgpu is a virtual GPU.
type vgpu struct {
	id     ID
	req    request.Request
	state  State
	gpus   []*gpu
	uuids  []UUID // of gpus; replaced, never changed in place
	reason string // why it can not be bound

	arrival uint64        // among all that ever became pending
	pending time.Duration // since when; while PENDING
	start   time.Duration // virtual time at which its next turn starts
	finish  time.Duration // virtual time at which its last turn ended
	minimum bucket
	maximum bucket

	waited   time.Duration // before the current turn
	granted  time.Duration
	class    request.Priority // of the current turn
	guarded  bool             // it is not cut short: granted by age or guarantee
	deadline time.Duration    // armed; 0: none
	taking   bool             // a Take is in force
	again    bool             // a client came to the gate during the drain
	usage    Usage
}

// New makes an engine without vGPUs and without GPUs. Zero fields of cfg stand
// for the defaults.
func New(cfg Config) *Engine {
	if cfg.Quantum <= 0 {
		cfg.Quantum = DefaultQuantum
	}
	if cfg.DrainDeadline <= 0 {
		cfg.DrainDeadline = DefaultDrainDeadline
	}
	if cfg.MinTurn <= 0 {
		cfg.MinTurn = DefaultMinTurn
	}
	if cfg.Ageing <= 0 {
		cfg.Ageing = DefaultAgeing
	}
	if cfg.Window <= 0 {
		cfg.Window = DefaultWindow
	}
	return &Engine{
		cfg: cfg, vgpus: make(map[ID]*vgpu), gpus: make(map[UUID]*gpu),
		random: rand.New(rand.NewPCG(cfg.Seed, 0)),
	}
}

// Step takes in one event and returns what the daemon must do now. The slice is
// valid until the next Step. An event about a vGPU or GPU that is not known, or
// that does not fit its state (a doorbell that crossed a decision), changes
// nothing.
func (e *Engine) Step(now time.Duration, ev Event) []Action {
	e.actions = e.actions[:0]
	switch ev.Kind {
	case Added:
		e.added(now, ev)
	case GPUUp:
		e.gpuUp(ev)
	case GPUDown:
		if g := e.gpus[ev.GPU]; g != nil {
			g.down = ev.Reason
			for _, v := range g.waiting.all { // what it kept elsewhere is free
				e.touch(v)
			}
			e.touchGPU(g)
		}
	default:
		v := e.vgpus[ev.VGPU]
		if v == nil {
			return nil
		}
		switch ev.Kind {
		case Removed:
			e.removed(now, v)
		case Changed:
			e.changed(now, v, ev.Request)
		case Bind:
			e.bind(v)
		case Unused:
			if v.state == Idle {
				e.unbind(v)
			}
		case Adopted:
			e.adopted(now, v, ev)
		case Pending:
			e.nowPending(now, v)
		case Complete:
			if v.state == Holding {
				e.turnEnded(now, v, ev)
			}
		case Drained:
			if v.state == Draining || v.state == Overrunning {
				e.turnEnded(now, v, ev)
			}
		case Deadline:
			e.expired(now, v)
		}
	}
	e.schedule(now)
	return e.actions
}

func (e *Engine) do(a Action) { e.actions = append(e.actions, a) }

// touch notes that on the GPUs of v it may be somebody's turn now.
func (e *Engine) touch(v *vgpu) {
	for _, g := range v.gpus {
		e.touchGPU(g)
	}
}

func (e *Engine) touchGPU(g *gpu) {
	if !g.touched {
		g.touched = true
		e.touched = append(e.touched, g)
	}
}

func (e *Engine) added(now time.Duration, ev Event) {
	if e.vgpus[ev.VGPU] != nil {
		return
	}
	v := &vgpu{id: ev.VGPU, req: ev.Request, state: Unbound}
	e.vgpus[ev.VGPU] = v
	e.setShares(now, v)
}

func (e *Engine) setShares(now time.Duration, v *vgpu) {
	// A turn that began on the last crumb of the guarantee may put v a quantum
	// ahead; what it gets beyond that by its weight is not held against it.
	v.minimum.set(now, share(v.req.MinShare), -e.quantum(v), e.cfg.Window)
	// What exceeds a cap is a debt, so that the cap holds in the long run.
	v.maximum.set(now, share(v.req.MaxShare), -maxDebt, e.cfg.Window)
}

func (e *Engine) quantum(v *vgpu) time.Duration {
	if v.req.Quantum > 0 {
		return v.req.Quantum
	}
	return e.cfg.Quantum
}

func (e *Engine) removed(now time.Duration, v *vgpu) {
	switch v.state {
	case Waiting:
		e.dequeue(v)
	case Holding, Draining, Overrunning:
		e.turnEnded(now, v, Event{})
		if v.state == Waiting {
			e.dequeue(v)
		}
	}
	e.unbind(v)
	delete(e.vgpus, v.id)
}

// changed takes in a live update, which holds from the next decision on. The
// GPUs stay, and so does their number. CanChange was asked before.
func (e *Engine) changed(now time.Duration, v *vgpu, req request.Request) {
	shares := req.MinShare != v.req.MinShare || req.MaxShare != v.req.MaxShare
	for _, g := range v.gpus {
		g.ledger += req.MemoryBytes - v.req.MemoryBytes
		g.guaranteed += share(req.MinShare) - share(v.req.MinShare)
	}
	req.Count = v.req.Count
	for _, g := range v.gpus {
		if v.state == Waiting {
			g.waiting.count(v, -1)
		}
	}
	v.req = req
	if shares {
		e.setShares(now, v)
	}
	for _, g := range v.gpus {
		if v.state == Waiting {
			g.waiting.count(v, 1)
		}
	}
	v.minimum.floor = -e.quantum(v)
	e.touch(v)
}

func (e *Engine) gpuUp(ev Event) {
	g := e.gpus[ev.GPU]
	if g == nil {
		g = &gpu{uuid: ev.GPU}
		e.gpus[ev.GPU] = g
		e.order = append(e.order, g)
	}
	g.model, g.memory, g.down = ev.Model, ev.MemoryBytes, ""
	for _, v := range g.waiting.all {
		e.touch(v)
	}
	e.touchGPU(g)
}

func (e *Engine) adopted(now time.Duration, v *vgpu, ev Event) {
	if v.state != Unbound {
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
	v.state = Idle
	if !ev.Holding {
		if ev.Waiting {
			e.enqueue(now, v)
		}
		return
	}
	v.granted, v.again = now, ev.Draining && ev.Waiting
	v.state, v.class, v.guarded = Holding, v.req.Priority, false
	e.touch(v)
	free := true
	for _, g := range v.gpus {
		free = free && g.holder == nil
	}
	if free {
		for _, g := range v.gpus {
			g.holder = v
		}
	}
	if ev.Draining || !free { // not free: it was an overrun before the restart
		e.revoke(now, v)
	}
}

func (e *Engine) nowPending(now time.Duration, v *vgpu) {
	switch v.state {
	case Idle:
		e.enqueue(now, v)
	case Holding:
		e.do(Action{Kind: Grant, VGPU: v.id})
	case Draining, Overrunning:
		v.again = true
	}
}

// expired ends a quantum, or a drain that took too long.
func (e *Engine) expired(now time.Duration, v *vgpu) {
	switch {
	case v.deadline == 0:
	case now < v.deadline:
		e.arm(v, v.deadline)
	case v.state == Waiting: // held back by its cap until now
		v.deadline = 0
		e.touch(v)
	case v.state == Holding:
		e.revoke(now, v)
	case v.state == Draining:
		v.state = Overrunning
		v.usage.Overruns++
		v.deadline = 0
		e.do(Action{Kind: Overrun, VGPU: v.id})
		for _, g := range v.gpus {
			if g.holder == v {
				g.holder = nil
				g.usage.Overruns++
			}
		}
		e.touch(v)
	}
}

func (e *Engine) revoke(now time.Duration, v *vgpu) {
	v.state = Draining
	v.taking = false
	e.do(Action{Kind: Revoke, VGPU: v.id})
	e.arm(v, now+e.cfg.DrainDeadline)
}

// turnEnded releases what v holds and accounts for its turn.
func (e *Engine) turnEnded(now time.Duration, v *vgpu, ev Event) {
	turn := Turn{
		Granted: v.granted,
		Ended:   now,
		Waited:  v.waited,
		Drained: v.state != Holding,
		Overrun: v.state == Overrunning,
	}
	if ev.LastWork > 0 {
		turn.Ended = min(max(ev.LastWork, v.granted), now)
	}
	turn.Held = max(turn.Ended-turn.Granted-max(ev.Idle, 0), 0)
	v.usage.add(turn)
	for _, g := range v.gpus {
		g.usage.add(turn)
		if g.holder == v {
			g.holder = nil
		}
	}
	v.finish = v.start + v.vtime(turn.Held)
	v.minimum.take(v.granted, now, turn.Held)
	v.maximum.take(v.granted, now, turn.Held)
	e.do(Action{Kind: Account, VGPU: v.id, Turn: turn})
	e.disarm(v)
	e.touch(v)
	v.taking = false
	v.state = Idle
	again := v.again || ev.Waiting
	v.again = false
	if again {
		e.enqueue(now, v)
	}
}

func (e *Engine) enqueue(now time.Duration, v *vgpu) {
	v.state = Waiting
	v.pending = now
	e.arrivals++
	v.arrival = e.arrivals
	v.start = v.finish
	for _, g := range v.gpus {
		if h := g.holder; h != nil && h.state == Holding && !h.taking {
			// It has the GPU to itself: the virtual time is what it has come
			// to, so that nobody is owed for the time when nobody waited.
			g.virtual = max(g.virtual, h.start+h.vtime(now-h.granted))
		}
		g.waiting.add(v)
		v.start = max(v.start, g.virtual)
	}
	e.touch(v)
}

func (e *Engine) dequeue(v *vgpu) {
	for _, g := range v.gpus {
		g.waiting.remove(v)
	}
	v.state = Idle
	e.disarm(v)
	e.touch(v)
}

// schedule grants what can be granted on the GPUs that were touched, and tells
// their holders whether somebody waits behind them.
func (e *Engine) schedule(now time.Duration) {
	// Who is first changes with time too. One that waits for several GPUs may
	// have been first on a GPU where nothing happened since; so they are looked
	// at together.
	for i := 0; i < len(e.touched); i++ {
		if g := e.touched[i]; g.waiting.several > 0 {
			for _, v := range g.waiting.all {
				if len(v.gpus) > 1 {
					e.touch(v)
				}
			}
		}
	}
	for i := 0; i < len(e.touched); i++ { // grows: a grant touches other GPUs
		g := e.touched[i]
		g.touched = false
		if g.holder == nil {
			if v := e.next(now, g); v != nil && v.free() {
				e.grant(now, v)
			}
		}
		e.contend(now, g)
	}
	e.touched = e.touched[:0]
}

// free says whether nobody holds a GPU of v.
func (v *vgpu) free() bool {
	for _, g := range v.gpus {
		if g.holder != nil {
			return false
		}
	}
	return true
}

func (e *Engine) grant(now time.Duration, v *vgpu) {
	v.class = v.req.Priority
	v.guarded = e.aged(now, v) || v.owed(now) > 0
	e.dequeue(v)
	v.state = Holding
	v.granted = now
	v.waited = now - v.pending
	for _, g := range v.gpus {
		g.holder = v
		g.virtual = max(g.virtual, v.start)
	}
	e.do(Action{Kind: Grant, VGPU: v.id})
}

// contend sets when the holder of g must give way, and arms those that wait for
// no more than their cap.
func (e *Engine) contend(now time.Duration, g *gpu) {
	for i := 0; g.waiting.shares > 0 && i < len(g.waiting.all); i++ {
		v := g.waiting.all[i]
		if until, capped := e.capped(now, v); capped && v.deadline != until {
			e.arm(v, until)
		}
	}
	v := g.holder
	if v == nil || v.state != Holding {
		return
	}
	wanted, end := e.wanted(now, v)
	if wanted != v.taking {
		v.taking = wanted
		kind := Take
		if !wanted {
			kind = Keep
		}
		e.do(Action{Kind: kind, VGPU: v.id})
	}
	if end != v.deadline {
		if end == 0 {
			e.disarm(v)
		} else {
			e.arm(v, end)
		}
	}
}

// wanted says whether somebody waits behind the holder v, and when its turn
// must end, if it must.
func (e *Engine) wanted(now time.Duration, v *vgpu) (wanted bool, end time.Duration) {
	quantum := v.granted + e.quantum(v)
	early := v.granted + min(e.cfg.MinTurn, e.quantum(v))
	for _, g := range v.gpus {
		if g.waiting.alike() && g.down == "" {
			if len(g.waiting.all) == 0 {
				continue
			}
			at := quantum
			if !v.guarded && g.waiting.higher(v.class) {
				at = early
			}
			if !wanted || at < end {
				end = at
			}
			wanted = true
			continue
		}
		for _, w := range g.waiting.all {
			if !e.eligible(now, w) {
				continue
			}
			at := quantum
			switch {
			case v.guarded:
			case w.req.Priority > v.class:
				at = early
			case w.minimum.rate > 0: // when it will be behind its guarantee
				w.minimum.flow(now)
				at = min(quantum, max(early, now+w.minimum.until(1)))
			}
			if !wanted || at < end {
				end = at
			}
			wanted = true
		}
	}
	if v.maximum.rate > 0 && v.maximum.rate < ppm {
		// What it may still use, while more flows in.
		v.maximum.flow(v.granted)
		if left := v.granted + v.maximum.level*ppm/time.Duration(ppm-v.maximum.rate); end == 0 || left < end {
			end = left
		}
	}
	if end != 0 {
		end = max(end, now)
		if v.deadline != 0 && v.deadline <= now && end == now {
			end = v.deadline // due already
		}
	}
	return wanted, end
}

func (e *Engine) arm(v *vgpu, at time.Duration) {
	v.deadline = at
	e.do(Action{Kind: Arm, VGPU: v.id, At: at})
}

func (e *Engine) disarm(v *vgpu) {
	if v.deadline != 0 {
		v.deadline = 0
		e.do(Action{Kind: Arm, VGPU: v.id})
	}
}
