// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
	"github.com/vgpu-shim/vgpu/vgpu/request"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// After a restart the words are in the pages of the clients, and nothing is
// granted on a GPU before every page that may have work on it is back or its
// process dead (R7). Until then the GPU is down for the engine.

// reconnect is how long a live process may take to come back, at least: a
// client tries every 20 ms.
const reconnect = 2 * time.Second

const reasonRecovering = "vgpud was restarted and waits for processes to come back"

// expected is a page of before the restart whose process lives.
type expected struct {
	pageRecord
	pidfd  int // -1: the process could not be opened, and is looked at now and again
	token  uint64
	late   bool          // given up: its vGPU was adopted without it
	execed time.Duration // see hungUp.since
}

// missing says whether v waits for a page.
func (v *vgpu) missing() bool {
	return v.lost || slices.ContainsFunc(v.expected, func(x *expected) bool { return !x.late })
}

func (v *vgpu) expects(x *expected) bool { return slices.Contains(v.expected, x) }

// mayUse are the GPUs on which processes of v may have work.
func (l *loop) mayUse(v *vgpu) []arbiter.UUID {
	if !v.lost || len(v.bound) > 0 {
		return v.bound
	}
	var all []arbiter.UUID
	for _, g := range l.order {
		all = append(all, arbiter.UUID(g.UUID))
	}
	return all
}

// recovery is under way while a page is missing.
type recovery struct {
	deadline timer
}

// mayReturn says whether a process may still come back of which nothing is known:
// its record was lost, or it began while no vgpud ran.
func (l *loop) mayReturn() bool { return l.recovery != nil || l.now() < l.returnUntil }

// expect finds the live processes of a recorded vGPU. It comes before add. Only
// a process that is dead for certain is not waited for.
func (l *loop) expect(v *vgpu, pages []pageRecord) {
	for _, p := range pages {
		l.lastClient = max(l.lastClient, p.Client)
		if v.rec.Boot != l.boot {
			continue
		}
		x := &expected{pageRecord: p}
		var err error
		if x.pidfd, err = find(p.process); errors.Is(err, errGone) {
			continue
		}
		if err == nil {
			x.token, err = l.poller.add(x.pidfd, func() {
				if dead(x.pidfd) {
					l.expectedDied(v, x)
				}
			})
			if err != nil {
				unix.Close(x.pidfd)
			}
		}
		if err != nil {
			l.log.WithFields(v.fields()).WithField("pid", p.PID).WithError(err).Error("failed to watch a process; it counts as alive")
			x.pidfd = -1
		}
		v.expected = append(v.expected, x)
	}
}

func (l *loop) expectedDied(v *vgpu, x *expected) {
	l.forget(x)
	v.expected = slices.DeleteFunc(v.expected, func(other *expected) bool { return other == x })
	l.recovered()
	if v.adopted {
		l.unused(v)
	}
}

func (l *loop) forget(x *expected) {
	if x.pidfd < 0 {
		return
	}
	l.poller.remove(x.pidfd, x.token)
	unix.Close(x.pidfd)
}

// startRecovery takes the GPUs down that the missing pages may use. It comes
// after all recorded vGPUs were added and before any client is served.
func (l *loop) startRecovery() {
	r := &recovery{}
	if len(l.vgpus) > 0 {
		l.returnUntil = l.now() + reconnect
	}
	for _, v := range l.vgpus {
		if !v.missing() {
			continue
		}
		l.look(v) // some may have become other programs
		for _, uuid := range l.mayUse(v) {
			l.setCause(uuid, causeRecovering, reasonRecovering)
		}
	}
	r.deadline.fire = l.recoveryLate
	l.recovery = r
	l.arm(&r.deadline, l.now()+max(l.drain, reconnect))
	l.recovered()
}

// recoveryLate gives up on processes that live and do not come back, such as
// stopped ones: an overrun like any other. Their vGPUs stay bound as they are,
// since the processes know their GPU.
func (l *loop) recoveryLate() {
	for _, v := range l.vgpus {
		if v.lost {
			v.lost = false
			l.saved(v, func(error) {})
		}
		for _, x := range v.expected {
			x.late = true
			l.log.WithFields(v.fields()).WithField("pid", x.PID).
				Warn("a process did not come back after the restart of vgpud; others are granted beside what it may have in flight")
		}
	}
	l.recovered()
}

// recovered adopts the vGPUs of which no page is missing any more, then lets the
// GPUs be granted on which no vGPU is left to adopt.
func (l *loop) recovered() {
	if l.recovery == nil {
		return
	}
	defer l.leaseAgain()
	// Those that are not draining first, also those that are not back yet: if two
	// hold one GPU, one of them is left over from an overrun.
	for _, drains := range []bool{false, true} {
		for _, v := range l.vgpus {
			if !v.adopted && !v.missing() && v.anyDraining() == drains && !(drains && l.besideMissing(v)) {
				l.adopt(v)
			}
		}
	}
	missing := make(map[arbiter.UUID]bool)
	left := false
	for _, v := range l.vgpus {
		if !v.adopted {
			left = true
			for _, uuid := range l.mayUse(v) {
				missing[uuid] = true
			}
		}
	}
	for _, g := range l.order {
		if uuid := arbiter.UUID(g.UUID); !missing[uuid] {
			l.setCause(uuid, causeRecovering, "")
		}
	}
	if left {
		return
	}
	l.arm(&l.recovery.deadline, 0)
	l.recovery = nil
	for _, v := range l.vgpus {
		if len(v.binders) > 0 {
			l.bindLooked(v)
		}
	}
}

// besideMissing says whether a page is missing that may have work on a GPU of v.
func (l *loop) besideMissing(v *vgpu) bool {
	for _, other := range l.vgpus {
		if other == v || !other.missing() {
			continue
		}
		for _, uuid := range l.mayUse(other) {
			if slices.Contains(l.mayUse(v), uuid) {
				return true
			}
		}
	}
	return false
}

func (v *vgpu) anyDraining() bool {
	return slices.ContainsFunc(v.clients, func(c *client) bool { return state(c.page) == wire.Draining })
}

// adopt rebuilds where v stood from its words.
func (l *loop) adopt(v *vgpu) {
	v.adopted = true
	if v.leaving {
		defer l.poller.post(func() { l.remove(v) })
	}
	if len(v.expected) == 0 {
		v.regain()
	}
	switch was := v.turn; {
	case len(v.clients)+len(v.expected) == 0 && !v.observed() && v.req.Bind == request.BindLate && (was.granted == 0 || len(v.bound) == 0):
		v.bound = nil // nothing of it uses a GPU
		v.turn = turn{}
	case len(v.bound) == 0:
		v.turn = turn{}
		for _, c := range v.clients {
			revokeWord(c.page) // it can not hold what it is not bound to
		}
	default:
		ev := arbiter.Event{Kind: arbiter.Adopted, VGPU: v.key, GPUs: v.bound}
		// In this order: what drains can be closed between two looks, and one that
		// was not closed and does not drain is a holder.
		ev.Draining = v.anyDraining()
		ev.Holding, ev.Waiting = !v.allClosed(), v.anyWaiting()
		if was.granted != 0 && !ev.Holding {
			// Its turn ended while vgpud was away: it drained, or all are dead.
			ev.Holding, ev.Draining = true, len(v.clients) > 0
			if !ev.Draining {
				l.credit(v)
			}
		}
		if ev.Holding {
			v.phase = holding
			v.turn.granted, v.turn.pending = cmp.Or(was.granted, l.now()), 0
			ev.Since, ev.Waited = was.granted, was.waited
			for _, c := range v.clients {
				c.page.Wanted().Store(0) // set anew if the engine says so
			}
		} else if ev.Waiting {
			ev.Since = was.pending
			v.turn.pending = cmp.Or(was.pending, l.now())
		} else {
			v.turn.pending = 0
		}
		l.log.WithFields(v.fields()).WithField("holding", ev.Holding).Info("vGPU found again")
		l.event(ev)
	}
	l.keepAccount(v)
	// A grant whose wake-up the old vgpud did not live to make.
	for _, c := range v.clients {
		c.page.Wake()
		l.nudge(c)
	}
	l.settle(v)
	if len(v.binders) > 0 {
		l.bindLooked(v)
	}
}

func (l *loop) gpuUp(uuid arbiter.UUID) {
	if g := l.gpus[uuid]; g != nil {
		if g.account == nil {
			g.account, g.before = l.accounts.takeGPU(uuid)
		}
		l.event(arbiter.Event{Kind: arbiter.GPUUp, GPU: uuid, Model: g.Model, MemoryBytes: g.MemoryBytes, Usage: g.before})
	}
}
