// SPDX-License-Identifier: Apache-2.0

package node

import (
	"strings"
	"time"

	"github.com/sirupsen/logrus"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
	"github.com/vgpu-shim/vgpu/vgpu/request"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// phase is what the words of a vGPU are for right now.
type phase uint8

const (
	free     phase = iota // it holds nothing: its words are closed
	holding               // granted
	draining              // revoked, not yet all closed; also an overrun
)

// vgpu is a vGPU in the loop.
type vgpu struct {
	// key is unique for as long as vgpud runs: a container that is made anew
	// under its old id is another vGPU, and the old one may still be draining.
	key arbiter.ID
	rec record // but for GPUs and Pages, which are kept here
	req request.Request

	listen      int
	listenToken uint64

	clients []*client
	conns   map[*conn]struct{}
	binders []*conn // wait for an answer to Bind

	phase    phase
	turn     turn
	young    bool  // it is in loop.young
	rung     bool  // it is in loop.rung
	deadline timer // the engine's
	linger   timer // the end of what Take lets it keep
	gaps     arbiter.Gaps
	progress uint64 // of its drain, as it was seen last
	bound    []arbiter.UUID
	early    func(error) // waits for the answer to a Bind at Create
	binding  int         // how often bound is on its way into the store; the last one is not told yet

	cold      bool     // it overran, and stands still until its next turn
	runs      bool     // it is cold, and not all of it could be frozen
	dying     bool     // it is not cold because a process of it was killed
	frozen    []string // cgroups that may be frozen
	freezing  chores   // what is done to them: nothing that its container could hold up
	coldTimer timer

	account *slot // its place in the accounts
	before  kept  // what an earlier vgpud left there
	shown   shown

	swap time.Duration // as the engine was told last, see swaps.go

	submissions uint64          // of clients that are gone
	rubbish     uint64          // connections closed because of what came over them
	stats       stats           // of clients that are gone
	said        map[string]bool // see loop.once
	bindSaid    string          // see loop.tellBind

	outclassed bool // a vGPU of a higher class lives on one of its GPUs

	observers []*observer
	late      ofLate

	chores  chores // what may have to wait for this container
	lookups chores // of the pids of its processes, for its observers

	// Looks at processes that hung up.
	looking   bool // one is under way
	lookTimer timer
	lookDelay time.Duration

	expected []*expected // after a restart: live pages that are not back yet
	// lost: its record could not be used, so nobody knows which pages are missing,
	// nor on which GPUs, until a process says it (bound). Ends with the recovery.
	lost    bool
	adopted bool // none is missing any more
	// leaving: it was being removed when the last vgpud went away. It has no
	// directory any more, so its processes can only die, or be given up.
	leaving bool

	removed bool // on its way out
	removal timer
}

func (v *vgpu) fields() logrus.Fields {
	return logrus.Fields{"vgpu": v.rec.ID, "namespace": v.rec.Namespace, "container": v.rec.Container}
}

func (v *vgpu) container() *v1.Container {
	return &v1.Container{Containerd: v.rec.Containerd, Namespace: v.rec.Namespace, Id: v.rec.Container}
}

// stats are what clients say they could not gate.
type stats struct {
	unhooked uint64 // look-ups of functions that submit work
	unknown  uint64 // names
}

func (s *stats) add(o stats) {
	s.unhooked += o.unhooked
	s.unknown += o.unknown
}

// ungated sums up what the clients of v said.
func (v *vgpu) ungated() stats {
	sum := v.stats
	for _, c := range v.clients {
		sum.add(c.stats)
	}
	return sum
}

// record is what the store must know now.
func (v *vgpu) record() *record {
	r := v.rec
	r.Lost = v.lost
	r.Frozen = v.frozen
	for _, u := range v.bound {
		r.GPUs = append(r.GPUs, string(u))
	}
	for _, c := range v.clients {
		r.Pages = append(r.Pages, pageRecord{process: c.process, Client: c.id, Inode: c.inode})
	}
	r.Observers = v.toldObservers()
	for _, x := range v.expected {
		r.Pages = append(r.Pages, x.pageRecord)
	}
	return &r
}

// anyWaiting reads afresh whether a thread stands at the gate.
func (v *vgpu) anyWaiting() bool {
	for _, c := range v.clients {
		if waiting(c.page) {
			return true
		}
	}
	return false
}

func (v *vgpu) allClosed() bool {
	for _, c := range v.clients {
		if state(c.page) != wire.Closed {
			return false
		}
	}
	return true
}

// add takes in a vGPU.
func (l *loop) add(v *vgpu) {
	v.conns = make(map[*conn]struct{})
	v.said = make(map[string]bool)
	v.deadline.fire = func() { l.deadline(v) }
	v.coldTimer.fire = func() { l.lookCold(v) }
	v.linger.fire = func() { l.settle(v) }
	v.removal.fire = func() { l.removalLate(v) }
	v.lookTimer.fire = func() { l.lookOnce(v) }
	if !v.leaving {
		l.current[v.rec.ID] = v
	}
	l.vgpus[v.key] = v
	l.event(arbiter.Event{Kind: arbiter.Added, VGPU: v.key, Request: v.req, Gang: v.gang(), Reservation: v.rec.Reservation, Usage: v.before.usage})
}

// gang is the name of the gang of v, unique on this machine: gangs of one name in
// different namespaces have nothing to do with each other. All pods of a node are in
// one namespace of containerd's; Kubernetes' own is that of their authors.
func (v *vgpu) gang() string {
	if v.req.Gang == "" {
		return ""
	}
	return strings.Join([]string{v.rec.Containerd, v.rec.Namespace, v.rec.Pod.message().GetNamespace(), v.req.Gang}, "\x00")
}

// listenOn takes clients in on a socket from now on. It owns fd unless it fails.
func (l *loop) listenOn(v *vgpu, fd int) error {
	token, err := l.poller.add(fd, func() { l.accept(v) })
	if err != nil {
		return err
	}
	v.listen, v.listenToken = fd, token
	return nil
}

// remove takes a vGPU away. It takes no new clients from now on. What it has in
// flight keeps the GPU until it is complete, until its processes are dead, or
// until the drain deadline. The record stays until then, too, so that a restart
// in between finds what is running.
func (l *loop) remove(v *vgpu) {
	if v.removed {
		return
	}
	if l.current[v.rec.ID] == v {
		delete(l.current, v.rec.ID)
	}
	l.closeListener(v)
	if !v.adopted {
		// After a restart: what its processes hold is not known yet, or drains. It
		// goes once they are dead, or given up.
		v.leaving = true
		return
	}
	v.removed = true
	l.thaw(v) // to drain, or to die
	for _, x := range v.expected {
		l.forget(x)
	}
	v.expected = nil
	for len(v.binders) > 0 {
		c := v.binders[0]
		v.binders = v.binders[1:]
		l.refuse(c, wire.ErrRemoved, "the container is being removed")
	}
	if v.phase == free {
		for _, c := range v.clients {
			revokeWord(c.page) // a page that came back open, out of turn
		}
		l.finishRemoval(v)
		return
	}
	l.closeWords(v)
	l.arm(&v.removal, l.now()+l.drain)
	l.settle(v)
}

// removalLate ends the wait for a removed vGPU's clients, which live on and do
// not drain.
func (l *loop) removalLate(v *vgpu) {
	l.log.WithFields(v.fields()).Warn("a removed container's process did not drain in time; others are granted beside it")
	l.finishRemoval(v)
}

func (l *loop) finishRemoval(v *vgpu) {
	l.arm(&v.removal, 0)
	l.arm(&v.deadline, 0)
	l.arm(&v.linger, 0)
	l.arm(&v.coldTimer, 0)
	l.arm(&v.lookTimer, 0)
	for c := range v.conns {
		l.hangUp(c)
	}
	for len(v.clients) > 0 {
		l.drop(v.clients[0])
	}
	for len(v.observers) > 0 {
		l.dropObserver(v, v.observers[0])
	}
	delete(l.vgpus, v.key)
	l.tell(eventRemoved, v, "")
	l.leaving[v.key] = v
	l.event(arbiter.Event{Kind: arbiter.Removed, VGPU: v.key})
	l.store.remove(v.rec.Dir, nil)
	for _, g := range l.order {
		if g.lastHolder == v {
			g.lastHolder = nil
		}
	}
	l.recovered()
}

func (l *loop) closeListener(v *vgpu) {
	if v.listen < 0 {
		return
	}
	l.poller.remove(v.listen, v.listenToken)
	v.chores.close(v.listen) // with those that connected and were not accepted
	v.listen = -1
}
