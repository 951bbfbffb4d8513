// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"math"
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
	// Stall is how long a drain goes without progress before it is asked whether
	// it depends on work behind the gate. At most half of DrainDeadline.
	Stall time.Duration
	// Overrun is what becomes of a vGPU that does not drain in time, unless its own
	// request is stricter. The zero value is Corun.
	Overrun request.Overrun
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
	// SwitchCost is how much GPU time it costs to go from one vGPU to another
	// whose memory is there.
	SwitchCost time.Duration
	// SwapShare is which part of a turn may go into bringing back the memory of its
	// vGPU: the quantum is raised for that (swap.go), up to LongestQuantum.
	SwapShare      float64
	LongestQuantum time.Duration
	// Oversubscription is how much memory may be reserved of a GPU, over what it
	// has; 1 or more. No vGPU gets more than the GPU has.
	Oversubscription float64
	// Linger is how long a GPU is kept for a vGPU that became idle: learned from
	// its gaps (the default), never, or always the same.
	Linger Linger
	// Policy is in force where neither a GPU nor a vGPU has one.
	Policy Policy
	// Binding names the order in which GPUs are tried at bind.
	Binding Binding
	// Seed starts the random binding.
	Seed uint64
}

// The defaults of Config.
const (
	DefaultQuantum       = 20 * time.Millisecond
	DefaultDrainDeadline = 2 * time.Second
	DefaultStall         = 100 * time.Millisecond
	DefaultMinTurn       = 2 * time.Millisecond
	DefaultAgeing        = 5 * time.Second
	DefaultWindow        = time.Second
	DefaultSwitchCost    = 50 * time.Microsecond
	DefaultSwapShare     = 0.01
	DefaultLongest       = 10 * time.Second // LongestQuantum
)

// Engine is the state machine. It is not safe for concurrent use.
type Engine struct {
	cfg          Config
	vgpus        map[ID]*vgpu
	gangs        map[string]*gang // those with a name
	reservations []*reservation   // likewise, sorted by compare
	gpus         map[UUID]*gpu
	order        []*gpu // in the order in which they came up
	touched      []*gpu // those on which somebody may go next now
	unbound      []*vgpu
	room         bool   // one of unbound may find a GPU now
	residence    uint64 // see Residence
	actions      []Action
	scratch      []*gpu // of regroup, which mostly finds what was there
	arrivals     uint64
	looks        uint64 // how often it was looked who is first
	random       *rand.Rand
}

// gpu is a physical GPU.
type gpu struct {
	uuid   UUID
	model  string
	memory uint64
	free   uint64 // of it, as the driver says; memory if it said nothing
	beyond uint64 // may be reserved beyond it
	down   string // why it takes no grants and no binds; empty if it does
	cordon string // why it takes no binds
	policy Policy // zero: the node's

	holder     *gang
	beside     int    // vGPUs that drain beside its holder and are no overrun yet: see adopted
	bound      int    // vGPUs that live here
	ledger     uint64 // bytes that they reserved
	guests     uint64 // of them, those that were not promised to them here
	promises   map[string]promise
	guaranteed int64 // the minimum shares that they have, in ppm
	waiting    crowd // those of their gangs that are pending
	// virtual is, for each class, where those stand that take turns: the smallest
	// start tag of those that wait when one is granted.
	virtual [request.High - request.Low + 1]time.Duration
	touched bool
	usage   Usage
}

// vgpu is a virtual GPU.
type vgpu struct {
	id          ID
	req         request.Request
	gang        *gang
	reservation *reservation
	settings
	gpus    []*gpu
	uuids   []UUID // of gpus; replaced, never changed in place
	binding bool   // it asked for GPUs and has none yet
	reason  string // why

	waits    bool          // a client stands at the gate
	since    time.Duration // when it came there
	part     bool          // it was granted in the current turn of its gang
	in       bool          // and owes a Complete or a Drained
	beside   bool          // it drains beside the holders of its GPUs since a restart; an overrun when it is late
	waited   time.Duration // before that
	granted  time.Duration
	idle     time.Duration // in a turn that drains, as it was seen last
	lingered time.Duration // of that, while somebody waited
	still    bool          // it overran, and is frozen until its next turn
	stuck    bool          // it drains, and the last look saw no progress
	resumed  bool          // its drain was, and is not over
	helped   bool          // and it got on since
	armed    time.Duration // what the last Arm said; 0: nothing

	released time.Duration // when its last turn ended by itself; 0: it did not
	swap     time.Duration // see swap.go
	history  history
	habit    habit
	usage    Usage
}

// New makes an engine without vGPUs and without GPUs. Zero fields of cfg stand
// for the defaults.
func New(cfg Config) *Engine {
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&cfg.Quantum, DefaultQuantum},
		{&cfg.DrainDeadline, DefaultDrainDeadline},
		{&cfg.Stall, DefaultStall},
		{&cfg.MinTurn, DefaultMinTurn},
		{&cfg.Ageing, DefaultAgeing},
		{&cfg.Window, DefaultWindow},
		{&cfg.SwitchCost, DefaultSwitchCost},
		{&cfg.LongestQuantum, DefaultLongest},
	} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
	if cfg.SwapShare <= 0 {
		cfg.SwapShare = DefaultSwapShare
	}
	cfg.Oversubscription = max(cfg.Oversubscription, 1)
	cfg.Overrun = max(cfg.Overrun, request.Corun)
	cfg.Stall = min(cfg.Stall, cfg.DrainDeadline/2)
	return &Engine{
		cfg: cfg, vgpus: make(map[ID]*vgpu), gangs: make(map[string]*gang), gpus: make(map[UUID]*gpu),
		random: rand.New(rand.NewPCG(cfg.Seed, 0)), //nolint:gosec // G404: it chooses a GPU, and the same seed has to choose the same one
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
		e.gpuUp(now, ev)
	case GPUDown, Cordon, GPUMemory, Promised:
		if g := e.gpus[ev.GPU]; g != nil {
			e.gpuChanged(g, ev)
		}
	case SetPolicy:
		e.setPolicy(now, ev)
	default:
		v := e.vgpus[ev.VGPU]
		if v == nil {
			return nil
		}
		e.about(now, v, ev)
	}
	for e.room {
		e.bindWaiting(now)
	}
	e.schedule(now)
	return e.actions
}

// about takes in an event about one vGPU.
func (e *Engine) about(now time.Duration, v *vgpu, ev Event) {
	switch ev.Kind {
	case Removed:
		e.removed(now, v)
	case Changed:
		e.changed(now, v, ev.Request)
	case Bind:
		e.bind(now, v)
	case Unused:
		e.unused(now, v)
	case Adopted:
		e.adopted(now, v, ev)
	case Pending:
		e.nowPending(now, v)
	case Complete:
		if v.in && v.gang.state == Holding {
			e.partEnded(now, v, ev)
		}
	case Drained:
		if v.in && (v.gang.state == Draining || v.gang.late) {
			e.partEnded(now, v, ev)
		}
	case Deadline:
		e.expired(now, v, ev)
	case Swaps:
		e.swaps(now, v, ev.Swap)
	case Runs:
		v.still = v.still && !(v.in && v.gang.late)
	}
}

func (e *Engine) do(a Action) { e.actions = append(e.actions, a) }

func (e *Engine) arm(v *vgpu, at time.Duration) {
	v.armed = at
	e.do(Action{Kind: Arm, VGPU: v.id, At: at})
}

func (e *Engine) disarm(v *vgpu) {
	if v.armed != 0 {
		e.arm(v, 0)
	}
}

// touch notes that on the GPUs of t it may be somebody's turn now.
func (e *Engine) touch(t *gang) {
	for _, g := range t.gpus {
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
	v := &vgpu{id: ev.VGPU, req: ev.Request, usage: ev.Usage}
	e.vgpus[ev.VGPU] = v
	e.join(v, ev.Gang)
	e.reserve(v, ev.Reservation)
	e.settle(now, v)
}

func (e *Engine) removed(now time.Duration, v *vgpu) {
	if v.in {
		e.account(now, v, Event{})
	}
	v.in, v.waits = false, false
	e.besideNoMore(v)
	e.disarm(v)
	e.detach(now, v)
	e.leave(now, v)
	e.unreserve(v)
	delete(e.vgpus, v.id)
}

// changed takes in a live update, which holds from the next decision on. The
// GPUs stay, and so does their number. CanChange was asked before.
func (e *Engine) changed(now time.Duration, v *vgpu, req request.Request) {
	req.Count = v.req.Count
	e.reserves(v, v.gpus, func() { v.req = req })
	before := v.gang.quantum
	e.settle(now, v)
	v.gang.requantum(before)
	e.room = true
}

// requantum lets a quantum that was another one before hold for the turn that runs,
// too.
func (t *gang) requantum(before time.Duration) {
	if t.state == Holding && t.resumes == 0 && t.quantum != before {
		t.end = t.granted + t.quantum
	}
}

func (e *Engine) gpuUp(now time.Duration, ev Event) {
	g := e.gpus[ev.GPU]
	if g == nil {
		g = &gpu{uuid: ev.GPU, usage: ev.Usage}
		e.gpus[ev.GPU] = g
		e.order = append(e.order, g)
	}
	if g.memory != ev.MemoryBytes {
		g.free = ev.MemoryBytes
	}
	g.model, g.memory, g.down = ev.Model, ev.MemoryBytes, ""
	g.beyond = uint64(math.Round(float64(g.memory)*e.cfg.Oversubscription)) - g.memory
	e.room = true
	e.touchAround(g)
	for _, id := range e.IDs() { // in an order that does not change
		e.catchUp(now, e.vgpus[id].gang)
	}
}

func (e *Engine) gpuChanged(g *gpu, ev Event) {
	switch ev.Kind {
	case GPUDown:
		g.down = ev.Reason
		e.touchAround(g) // what those that wait for it keep elsewhere is free
	case Cordon:
		g.cordon = ev.Reason
	case GPUMemory:
		g.free = ev.MemoryBytes
	case Promised:
		e.promised(g, ev)
	}
	e.room = true
}

func (e *Engine) touchAround(g *gpu) {
	for _, t := range g.waiting.all {
		e.touch(t)
	}
	e.touchGPU(g)
}
