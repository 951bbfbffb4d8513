// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"fmt"
	"slices"
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
}

// The defaults of Config.
const (
	DefaultQuantum       = 20 * time.Millisecond
	DefaultDrainDeadline = 2 * time.Second
)

// Engine is the state machine. It is not safe for concurrent use.
type Engine struct {
	cfg     Config
	vgpus   map[ID]*vgpu
	gpus    map[UUID]*gpu
	order   []*gpu  // in the order in which they came up
	queue   []*vgpu // pending, in order of arrival
	actions []Action
	pass    uint64 // counts runs of schedule, to mark GPUs in one
}

// gpu is a physical GPU.
type gpu struct {
	uuid   UUID
	model  string
	memory uint64
	down   string // why it takes no grants; empty if it does

	holder  *vgpu
	bound   int    // vGPUs that live here
	ledger  uint64 // bytes that they reserved
	waiters int    // of them, how many are pending
	keptAt  uint64 // the last pass in which an eligible waiter did not get it
	usage   Usage
}

// vgpu is a virtual GPU.
type vgpu struct {
	id     ID
	req    request.Request
	state  State
	gpus   []*gpu
	uuids  []UUID // of gpus; replaced, never changed in place
	reason string // why it can not be bound

	pending  time.Duration // since when; while PENDING
	waited   time.Duration // before the current turn
	granted  time.Duration
	deadline time.Duration // armed; 0: none
	taking   bool          // a Take is in force
	again    bool          // a client came to the gate during the drain
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
	return &Engine{cfg: cfg, vgpus: make(map[ID]*vgpu), gpus: make(map[UUID]*gpu)}
}

// Step takes in one event and returns what the daemon must do now. The slice is
// valid until the next Step. An event about a vGPU or GPU that is not known, or
// that does not fit its state (a doorbell that crossed a decision), changes
// nothing.
func (e *Engine) Step(now time.Duration, ev Event) []Action {
	e.actions = e.actions[:0]
	switch ev.Kind {
	case Added:
		e.added(ev)
	case GPUUp:
		e.gpuUp(ev)
	case GPUDown:
		if g := e.gpus[ev.GPU]; g != nil {
			g.down = ev.Reason
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
			e.changed(v, ev.Request)
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

func (e *Engine) added(ev Event) {
	if e.vgpus[ev.VGPU] != nil {
		return
	}
	e.vgpus[ev.VGPU] = &vgpu{id: ev.VGPU, req: ev.Request, state: Unbound}
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

// changed takes in a live update. The GPUs stay; a quantum counts from the next
// time that it is armed.
func (e *Engine) changed(v *vgpu, req request.Request) {
	for _, g := range v.gpus {
		g.ledger += req.MemoryBytes - v.req.MemoryBytes
	}
	req.Count = v.req.Count
	v.req = req
}

func (e *Engine) gpuUp(ev Event) {
	g := e.gpus[ev.GPU]
	if g == nil {
		g = &gpu{uuid: ev.GPU}
		e.gpus[ev.GPU] = g
		e.order = append(e.order, g)
	}
	g.model, g.memory, g.down = ev.Model, ev.MemoryBytes, ""
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
	v.state = Holding
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
	e.do(Action{Kind: Account, VGPU: v.id, Turn: turn})
	e.disarm(v)
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
	e.queue = append(e.queue, v)
	for _, g := range v.gpus {
		g.waiters++
	}
}

func (e *Engine) dequeue(v *vgpu) {
	i := slices.Index(e.queue, v)
	e.queue = slices.Delete(e.queue, i, i+1)
	for _, g := range v.gpus {
		g.waiters--
	}
	v.state = Idle
}

// schedule grants what can be granted, in order of arrival, and tells the
// holders whether somebody waits behind them.
func (e *Engine) schedule(now time.Duration) {
	e.pass++
	for i := 0; i < len(e.queue); {
		v := e.queue[i]
		up, free := true, true
		for _, g := range v.gpus {
			up = up && g.down == ""
			free = free && g.holder == nil && g.keptAt != e.pass
		}
		if up && free {
			e.grant(now, v) // leaves the queue: the next one is at i now
			continue
		}
		if up { // one that waits for a GPU which is down keeps nothing from others
			for _, g := range v.gpus {
				g.keptAt = e.pass
			}
		}
		i++
	}
	for _, g := range e.order {
		if v := g.holder; v != nil && v.state == Holding {
			e.contend(now, v)
		}
	}
}

func (e *Engine) grant(now time.Duration, v *vgpu) {
	e.dequeue(v)
	v.state = Holding
	v.granted = now
	v.waited = now - v.pending
	for _, g := range v.gpus {
		g.holder = v
	}
	e.do(Action{Kind: Grant, VGPU: v.id})
}

// contend starts or ends the wish that the holder v gives way.
func (e *Engine) contend(now time.Duration, v *vgpu) {
	wanted := false
	for _, g := range v.gpus {
		wanted = wanted || g.keptAt == e.pass
	}
	switch {
	case wanted && !v.taking:
		v.taking = true
		quantum := v.req.Quantum
		if quantum <= 0 {
			quantum = e.cfg.Quantum
		}
		e.do(Action{Kind: Take, VGPU: v.id})
		e.arm(v, max(now, v.granted+quantum))
	case !wanted && v.taking:
		v.taking = false
		e.do(Action{Kind: Keep, VGPU: v.id})
		e.disarm(v)
	}
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

// bind chooses the GPUs of v: those with the fewest vGPUs, in inventory order
// where that is equal.
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
	slices.SortStableFunc(fit, func(a, b *gpu) int { return a.bound - b.bound })
	for _, g := range fit[:v.req.Count] {
		e.attach(v, g)
	}
	v.state, v.reason = Idle, ""
	e.do(Action{Kind: Bound, VGPU: v.id, GPUs: v.uuids})
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
	v.gpus = append(v.gpus, g)
	v.uuids = append(slices.Clone(v.uuids), g.uuid)
}

func (e *Engine) unbind(v *vgpu) {
	for _, g := range v.gpus {
		g.bound--
		g.ledger -= v.req.MemoryBytes
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
	return ""
}
