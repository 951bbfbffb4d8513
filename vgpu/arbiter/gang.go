// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"slices"
	"time"

	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// gang is what gets turns: the vGPUs of one name, or one vGPU on its own. All
// GPUs of its members are granted in one decision. A member that has nothing to
// do does not keep the others from their turn, and is in it all the same: it may
// begin at any time. The turn ends when the part of each member has ended.
type gang struct {
	name    string // empty: one vGPU on its own
	members []*vgpu
	gpus    []*gpu // of its members, each once; those bound in the middle of a turn come after it
	state   State
	// late: its last turn was an overrun, and not all of it has drained. It holds
	// nothing, but may wait.
	late bool

	settings                       // its members' strongest; quantum as swap raises it
	swap             time.Duration // the longest of its members
	minimum, maximum bucket

	arrival uint64           // among all that ever became pending
	pending time.Duration    // since when; while PENDING
	lane    request.Priority // the class by whose virtual time it is measured
	start   time.Duration    // virtual time at which its next turn starts
	finish  time.Duration    // virtual time at which its last turn ended
	looked  uint64           // the look for which first holds
	first   bool             // on all of several GPUs

	granted time.Duration
	ended   time.Duration // last completion of a member in this turn, or the end of what it lingered
	rank    request.Priority
	guarded bool          // it is not cut short: granted by age or guarantee, or resumed
	end     time.Duration // of its quantum
	taking  bool          // a Take is in force
	lingers bool          // and lets it linger
	drainBy time.Duration // when its drain is an overrun, resumed or not
	resumes int           // of the drain of this turn
	vain    int           // the last of them that helped nothing
}

// settings are a request as the policy in force reads it.
type settings struct {
	weight   int
	min, max int64 // shares in ppm; 0: none
	class    request.Priority
	quantum  time.Duration
	native   bool
}

// join puts v into the gang of a name, or into one of its own.
func (e *Engine) join(v *vgpu, name string) {
	t := e.gangs[name]
	if t == nil {
		t = &gang{name: name}
		if name != "" {
			e.gangs[name] = t
		}
	}
	t.members = append(t.members, v)
	v.gang = t
}

func (e *Engine) leave(now time.Duration, v *vgpu) {
	t := v.gang
	e.uncount(t)
	t.members = slices.DeleteFunc(t.members, func(other *vgpu) bool { return other == v })
	if len(t.members) == 0 {
		delete(e.gangs, t.name)
		return
	}
	e.combined(now, t)
}

// settle works out what holds for v and its gang after a change of its request,
// its GPUs or a policy.
func (e *Engine) settle(now time.Duration, v *vgpu) {
	t := v.gang
	e.uncount(t)
	before := v.settings
	v.settings = e.policy(v).settings(v.req, e.cfg.Quantum)
	for _, g := range v.gpus {
		g.guaranteed += v.min - before.min
	}
	e.combined(now, t)
	e.touch(t)
}

// combined ends a change of the settings of t, before which it was not counted.
func (e *Engine) combined(now time.Duration, t *gang) {
	e.combine(now, t)
	e.count(t)
	if t.state == Waiting && t.class != t.lane {
		e.tag(now, t)
		t.retagged()
	}
}

// combine makes the settings of a gang out of its members': what the strongest
// of them has, but the cap of the weakest.
func (e *Engine) combine(now time.Duration, t *gang) {
	before := t.settings
	t.settings = settings{}
	for i, v := range t.members {
		if i == 0 {
			t.settings = v.settings
			continue
		}
		t.weight, t.min, t.class = max(t.weight, v.weight), max(t.min, v.min), max(t.class, v.class)
		t.quantum, t.native = max(t.quantum, v.quantum), t.native && v.native
		if v.max > 0 && (t.max == 0 || v.max < t.max) {
			t.max = v.max
		}
	}
	e.raise(t)
	if t.class != before.class {
		e.residence++
	}
	if t.min != before.min {
		// A turn that began on the last crumb of the guarantee may put it a
		// quantum ahead; what it gets beyond that by its weight is not held
		// against it.
		t.minimum.set(now, t.min, -t.quantum, e.cfg.Window)
	}
	t.minimum.floor = -t.quantum
	if t.max != before.max {
		// What exceeds a cap is a debt, so that the cap holds in the long run.
		t.maximum.set(now, t.max, -maxDebt, e.cfg.Window)
	}
	if t.state == Holding && t.native != before.native {
		e.nativeChanged(now, t)
	}
}

// nativeChanged: whoever holds with others beside it can not be made to hold
// alone, so that turn is over; whoever held alone lets others in.
func (e *Engine) nativeChanged(now time.Duration, t *gang) {
	if !t.native {
		e.revoke(now, t)
		return
	}
	for _, g := range t.gpus {
		if g.holder == t {
			g.holder = nil
		}
	}
	t.taking = false
	for _, v := range t.members {
		if v.in {
			e.do(Action{Kind: Keep, VGPU: v.id})
		}
		e.disarm(v)
	}
	e.catchUp(now, t)
}

func (e *Engine) uncount(t *gang) { e.recount(t, -1) }
func (e *Engine) count(t *gang)   { e.recount(t, 1) }

func (e *Engine) recount(t *gang, n int) {
	if t.state != Waiting {
		return
	}
	for _, g := range t.gpus {
		g.waiting.count(t, n)
	}
}

// regroup sees what GPUs the members of t have now. t keeps its place if it
// waits; if it holds, what nobody of it uses any more is free, and what is new
// comes with its next turn.
func (e *Engine) regroup(now time.Duration, t *gang) {
	waits := t.state == Waiting
	if waits {
		e.dequeue(t)
	}
	e.touch(t)
	before, gpus := t.gpus, e.scratch[:0]
	holds := t.state == Holding || t.state == Draining
	for _, v := range t.members {
		for _, g := range v.gpus {
			if !slices.Contains(gpus, g) && (!holds || slices.Contains(before, g)) {
				gpus = append(gpus, g)
			}
		}
	}
	if e.scratch = gpus; !slices.Equal(gpus, before) {
		t.gpus = slices.Clone(gpus)
	}
	for _, g := range before {
		if g.holder == t && !slices.Contains(t.gpus, g) {
			g.holder = nil
		}
	}
	switch {
	case (holds || t.late) && !t.anyIn():
		e.turnEnded(now, t)
	case holds || t.late && !waits:
	case len(t.gpus) == 0:
		t.state = Unbound
	case waits && (t.late || t.waits()):
		e.queue(now, t)
	default:
		t.state = Idle
	}
}

func (t *gang) anyIn() bool {
	for _, v := range t.members {
		if v.in {
			return true
		}
	}
	return false
}

// waits says whether a client of any member stands at the gate.
func (t *gang) waits() bool {
	for _, v := range t.members {
		if v.waits {
			return true
		}
	}
	return false
}

// behind says whether a member waits that is not in the turn of its gang: it was
// bound after it began.
func (t *gang) behind() bool {
	if len(t.members) == 1 {
		return false
	}
	for _, v := range t.members {
		if v.waits && !v.part {
			return true
		}
	}
	return false
}
