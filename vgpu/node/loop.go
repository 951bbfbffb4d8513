// SPDX-License-Identifier: Apache-2.0

package node

import (
	"time"

	"github.com/sirupsen/logrus"

	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
	"github.com/vgpu-shim/vgpu/vgpu/gpu"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// loop is everything that its one goroutine owns. All methods are for that
// goroutine; others go through poller.post.
type loop struct {
	log      *logrus.Entry
	clock    clock
	poller   *poller
	store    *store
	accounts *accounts
	boot     string
	drain    time.Duration // drain deadline
	queue    time.Duration // of work may be in flight
	budget   time.Duration // likewise while somebody waits
	swapRate float64       // bytes a second that move where memory is oversubscribed; 0: it is not
	absence  time.Duration // after which clients go on without vgpud; 0: never
	freezer  freezer

	inventory gpu.Inventory
	memory    memoryLook

	lookPatience time.Duration // lookPatience, but in tests

	openCLOnCPU bool // an OpenCL device that is a CPU stands for a vGPU's first GPU; fixed

	engine   *arbiter.Engine
	inbox    []arbiter.Event // not yet taken in by the engine
	stepping bool

	vgpus   map[arbiter.ID]*vgpu // all, also those being removed
	current map[string]*vgpu     // by vGPU id: those that are not
	leaving map[arbiter.ID]*vgpu // until the engine has taken in that they are gone
	gpus    map[arbiter.UUID]*gpuState
	order   []*gpuState
	pages   map[uint64]*client // by the inode of the page
	asks    []*ask             // for memory, until it is known what is in use
	settled uint64             // the engine's Residence as it was dealt with

	fateOf func(process, uint64) fate // fateOf, but in tests

	lastClient uint64
	timers     []*timer // armed
	young      []*vgpu  // to be looked at again when their turn is not young any more
	rung       []*vgpu  // whose bells rang in this round
	recovery   *recovery
	// returnUntil is when processes of before the restart have had time to come back.
	returnUntil time.Duration

	events      *events
	gpuWatchers map[chan struct{}]struct{} // bells of WatchGPUs
	policy      arbiter.Policy             // of the node
	counters    counters

	msg     [wire.MsgSize + 1]byte // one byte more, to see what is too long
	nudging []byte                 // a NUDGE, ready to be sent
}

// gpuState is what the daemon keeps about a GPU beside the engine.
type gpuState struct {
	gpu.GPU
	handover latency
	// released is when the last turn on it ended, lastHolder whose it was; 0
	// once that was followed by a grant.
	released   time.Duration
	lastHolder *vgpu

	health     gpu.Health // as the driver said last
	causes     gpuCauses
	policy     arbiter.Policy // its own; zero: the node's
	memoryFree *uint64        // bytes, as the driver says; nil: not known
	look       processLook
	swapsLook  time.Duration // when it was looked what does not fit
	swaps      timer         // when it will be
	account    *slot         // see keepTurn
	before     arbiter.Usage // what an earlier vgpud left there
}

func (l *loop) now() time.Duration { return l.clock.now() }

// event gives ev to the engine and does what it asks for. Events that come up
// while that is done are queued, so that the engine sees one at a time.
func (l *loop) event(ev arbiter.Event) {
	l.inbox = append(l.inbox, ev)
	if l.stepping {
		return
	}
	l.stepping = true
	for i := 0; i < len(l.inbox); i++ {
		now := l.now()
		l.act(l.engine.Step(now, l.inbox[i]), now)
		if id := l.inbox[i].VGPU; l.inbox[i].Kind == arbiter.Removed && l.leaving[id] != nil {
			l.departed(l.leaving[id])
			delete(l.leaving, id)
		}
		l.resided()
	}
	l.inbox = l.inbox[:0]
	l.stepping = false
	l.armNext()
	l.bellGPUs()
}

// resided does what follows when the vGPUs of a GPU, their classes or what they
// reserve have changed.
func (l *loop) resided() {
	if l.settled == l.engine.Residence() {
		return
	}
	l.settled = l.engine.Residence()
	l.outclass()
	for _, g := range l.order {
		l.trimMemory(arbiter.UUID(g.UUID))
		l.lookAtSwaps(g)
	}
}

// bellGPUs tells those who watch the GPUs to look.
func (l *loop) bellGPUs() {
	for bell := range l.gpuWatchers {
		ring(bell)
	}
}

func (l *loop) act(actions []arbiter.Action, now time.Duration) {
	for i := range actions {
		a := &actions[i]
		v := l.vgpus[a.VGPU]
		if v == nil {
			continue // removed in the same breath
		}
		switch a.Kind {
		case arbiter.Bound:
			l.bound(v, a.GPUs)
		case arbiter.BindWaits:
			l.bindWaits(v, a.Reason)
		case arbiter.Unbindable:
			l.unbindable(v, a.Reason)
		case arbiter.Grant:
			l.grant(v, takeFollows(actions[i+1:], a.VGPU), now)
		case arbiter.Take:
			l.want(v, a.Linger)
		case arbiter.Keep:
			l.keep(v)
		case arbiter.Revoke:
			l.revoke(v)
		case arbiter.Resume:
			l.tell(eventResumed, v, "")
			l.resume(v, takeFollows(actions[i+1:], a.VGPU))
		case arbiter.Arm:
			l.arm(&v.deadline, a.At)
		case arbiter.Overrun:
			l.counters.overruns++
			l.tell(eventOverrun, v, "")
			l.overran(v, a.Overrun)
		case arbiter.Account:
			l.counters.turn(&a.Turn)
			l.account(v, &a.Turn)
		}
	}
}

func takeFollows(actions []arbiter.Action, id arbiter.ID) bool {
	for i := range actions {
		if actions[i].Kind == arbiter.Take && actions[i].VGPU == id {
			return true
		}
	}
	return false
}

// timer is one thing that is due at a time.
type timer struct {
	at    time.Duration // 0: not armed
	fire  func()
	index int
}

// arm sets t to at, or off for 0. Few timers are armed at once, a handful for each
// GPU and for each vGPU with a process that hung up, so a list is enough.
func (l *loop) arm(t *timer, at time.Duration) {
	switch {
	case at == 0 && t.at != 0:
		last := len(l.timers) - 1
		l.timers[t.index] = l.timers[last]
		l.timers[t.index].index = t.index
		l.timers = l.timers[:last]
	case at != 0 && t.at == 0:
		t.index = len(l.timers)
		l.timers = append(l.timers, t)
	}
	t.at = at
	if !l.stepping {
		l.armNext()
	}
}

func (l *loop) armNext() {
	var next time.Duration
	for _, t := range l.timers {
		if next == 0 || t.at < next {
			next = t.at
		}
	}
	if next != 0 {
		l.poller.arm(next, l.now())
	}
}

// timersFired runs what is due.
func (l *loop) timersFired() {
	now := l.now()
	var due []*timer
	for _, t := range l.timers {
		if t.at <= now {
			due = append(due, t)
		}
	}
	for _, t := range due {
		if t.at != 0 && t.at <= now { // not disarmed by one before it
			l.arm(t, 0)
			t.fire()
		}
	}
	l.armNext()
}
