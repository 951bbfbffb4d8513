// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// maxObservers bounds the observers of one vGPU: half of its connections are left
// for clients.
const maxObservers = maxConns / 2

// The observers of one vGPU get an answer each millisecond between them, in the
// long run. Each may ask observerBurst times before it has to wait.
const (
	observerBurst = 16
	observerShare = time.Millisecond
	observerPause = time.Second // at most
)

// observer is a connection of a program that only looks: it uses NVML. It has no
// page, gets no grant and is not waited for. But what it was told stays true for
// as long as it is there: its vGPU is not bound to other GPUs.
type observer struct {
	process
	pidfd int
	token uint64
	conn  *conn // nil: it was there before vgpud was restarted, and is not back
	told  bool  // it knows the GPUs of its vGPU
	saved bool  // that stands in the store

	asks  int // since
	since time.Duration
}

// observed says whether v must stay on its GPUs, or go on waiting for some,
// because of an observer.
func (v *vgpu) observed() bool {
	return slices.ContainsFunc(v.observers, func(o *observer) bool { return o.told }) ||
		slices.ContainsFunc(v.binders, func(c *conn) bool { return c.observer != nil })
}

// watchers is how many connected observers keep v where it is.
func (v *vgpu) watchers() (n uint32) {
	for _, o := range v.observers {
		if o.told && o.conn != nil {
			n++
		}
	}
	return n
}

// toldObservers are the processes that must be known after a restart.
func (v *vgpu) toldObservers() (all []process) {
	for _, o := range v.observers {
		if o.told {
			all = append(all, o.process)
		}
	}
	return all
}

// identity tells a connection what its vGPU is. Its first one makes it an
// observer.
func (l *loop) identity(c *conn, m *wire.Msg) {
	if c.observer == nil && !l.observe(c, m) {
		return
	}
	if m.A[0] == 1 && !l.identityKnown(c.v) {
		l.bind(c)
		return
	}
	l.tellIdentity(c)
}

// observe makes a connection an observer. False: it was refused.
func (l *loop) observe(c *conn, m *wire.Msg) bool {
	v := c.v
	refuse := func(code wire.Code, why string) bool {
		l.refuse(c, code, why)
		l.hangUp(c)
		return false
	}
	switch {
	case m.Protocol > wire.Protocol:
		return refuse(wire.ErrProtocol, fmt.Sprintf("this process speaks protocol %d, vgpud on this node up to %d: upgrade vgpud", m.Protocol, wire.Protocol))
	case v.removed:
		return refuse(wire.ErrRemoved, "the container is being removed")
	case len(v.observers) >= maxObservers:
		l.once(v, logrus.WarnLevel, "a vGPU has as many observers as it may; more of them are refused", nil)
		return refuse(wire.ErrInternal, fmt.Sprintf("%d processes of this container use NVML, more can not", maxObservers))
	}
	p, pidfd, err := peer(c.fd)
	if errors.Is(err, errGone) {
		l.hangUp(c)
		return false
	}
	if err != nil {
		l.once(v, logrus.ErrorLevel, "failed to identify an observer", logrus.Fields{logrus.ErrorKey: err})
		return refuse(wire.ErrInternal, err.Error())
	}
	o := &observer{process: p, pidfd: pidfd, conn: c}
	if err := l.watchObserver(v, o); err != nil {
		l.fail(c, err)
		return false
	}
	c.observer = o
	// It knew the GPUs before vgpud was restarted.
	if i := slices.IndexFunc(v.observers, func(old *observer) bool { return old.conn == nil && old.process == p }); i >= 0 {
		o.told = true
		l.dropObserver(v, v.observers[i])
	}
	return true
}

// watchObserver adds o to v until its process is dead. It owns the pidfd from now
// on, also on error.
func (l *loop) watchObserver(v *vgpu, o *observer) (err error) {
	o.token, err = l.poller.add(o.pidfd, func() {
		switch {
		case !dead(o.pidfd):
		case o.conn != nil:
			l.hangUp(o.conn)
		default:
			l.dropObserver(v, o)
		}
	})
	if err != nil {
		unix.Close(o.pidfd)
		return err
	}
	v.observers = append(v.observers, o)
	return nil
}

// expectObservers finds those again that were told the GPUs of v before vgpud was
// restarted. They come back when they ask next.
func (l *loop) expectObservers(v *vgpu, before []process) {
	if v.rec.Boot != l.boot {
		return
	}
	for _, p := range before {
		pidfd, err := find(p)
		if err == nil {
			err = l.watchObserver(v, &observer{process: p, pidfd: pidfd, told: true, saved: true})
		}
		if err != nil && !errors.Is(err, errGone) {
			l.log.WithFields(v.fields()).WithField("pid", p.PID).WithError(err).Warn("failed to watch a process that uses NVML; its vGPU may be bound elsewhere")
		}
	}
}

// dropObserver forgets an observer: it hung up, or is dead.
func (l *loop) dropObserver(v *vgpu, o *observer) {
	l.poller.remove(o.pidfd, o.token)
	unix.Close(o.pidfd)
	v.observers = slices.DeleteFunc(v.observers, func(other *observer) bool { return other == o })
	if o.conn != nil {
		o.conn.observer = nil
	}
	// Not at once: it may have gone in the middle of an event.
	l.poller.post(func() {
		if l.vgpus[v.key] == v {
			l.unused(v)
		}
	})
}

// identityKnown says whether the GPUs of v are chosen, and stand in the store.
func (l *loop) identityKnown(v *vgpu) bool {
	if len(v.bound) == 0 || v.binding > 0 {
		return false
	}
	s, _ := l.engine.VGPU(v.key)
	return !v.adopted || slices.Equal(s.GPUs, v.bound)
}

// tellIdentity says what the vGPU of an observer is: how many GPUs it has and, if
// they are chosen, which. These are told once it stands in the store that
// somebody knows them.
func (l *loop) tellIdentity(c *conn) {
	v, o := c.v, c.observer
	m := wire.Msg{Type: wire.IdentityIs, A: [4]uint64{uint64(v.req.Count)}}
	if !l.identityKnown(v) {
		l.send(c, &m, -1)
		return
	}
	if err := v.putUUIDs(&m); err != nil {
		l.fail(c, err)
		return
	}
	o.told = true
	if o.saved {
		l.send(c, &m, -1)
		return
	}
	l.saved(v, func(err error) {
		switch {
		case c.closed:
		case err != nil:
			l.fail(c, err)
		default:
			o.saved = true
			l.send(c, &m, -1)
		}
	})
}

// putUUIDs puts the GPUs of v into a message.
func (v *vgpu) putUUIDs(m *wire.Msg) error {
	for i, uuid := range v.bound {
		raw, err := wire.ParseUUID(string(uuid))
		if err != nil { // the inventory was checked at the start
			return err
		}
		m.UUID[i] = raw
	}
	m.Count = uint32(len(v.bound))
	return nil
}

// fromObserver handles what an observer said. An error means that it is rubbish.
func (l *loop) fromObserver(c *conn, m *wire.Msg) error {
	switch m.Type {
	case wire.Identity:
		l.identity(c, m)
		l.readAgain(c, l.observerRests(c, 1))
	case wire.Usage:
		l.usage(c, m)
	default:
		return fmt.Errorf("a message of type %d from an observer", m.Type)
	}
	return nil
}

// askCost is how many asks a question about a vGPU of so many processes counts
// for: each of them is looked up in /proc.
func askCost(processes int) int { return 1 + processes/16 }

// observerMustRest says whether one of several observers has asked as often as it
// may in one go.
func observerMustRest(observers, asks int) bool {
	return asks >= observerBurst || observerShare*time.Duration(observers*(asks+1)) > observerPause
}

// observerWindow is the time for which so many asks of one of several observers are
// enough.
func observerWindow(observers, asks int) time.Duration {
	return min(observerPause, observerShare*time.Duration(observers*asks))
}

// observerRests counts an ask for what it costs, and says for how long the observer
// is not read then.
func (l *loop) observerRests(c *conn, cost int) time.Duration {
	o := c.observer
	if o == nil {
		return 0
	}
	now, n := l.now(), len(c.v.observers)
	if now-o.since >= observerWindow(n, max(o.asks, observerBurst)) {
		o.asks, o.since = 0, now
	}
	if o.asks += cost; !observerMustRest(n, o.asks) {
		return 0
	}
	return o.since + observerWindow(n, o.asks) - now
}

// readAgain does not read a connection for a while.
func (l *loop) readAgain(c *conn, after time.Duration) {
	if after > 0 && !c.closed {
		l.poller.remove(c.fd, c.token)
		l.listenAfter(c, after)
	}
}

// listenAfter reads a connection, that is not read, after a while. The loop's
// timers are for few.
func (l *loop) listenAfter(c *conn, after time.Duration) {
	if after <= 0 {
		l.listen(c)
		return
	}
	go func() {
		time.Sleep(after)
		l.poller.post(func() { l.listen(c) })
	}()
}

// listen reads a connection that was not read for a while.
func (l *loop) listen(c *conn) {
	if c.closed {
		return
	}
	token, err := l.poller.add(c.fd, func() { l.readable(c) })
	if err != nil {
		l.fail(c, err)
		return
	}
	c.token = token
}

// usage tells an observer how its vGPU fares on a GPU, and which processes it has
// there. Their pids are looked up off the loop, for one observer of a vGPU after the
// other; nothing else of the connection is read until then.
func (l *loop) usage(c *conn, m *wire.Msg) {
	v := c.v
	uuid := arbiter.UUID(wire.FormatUUID(m.UUID[0]))
	answer := wire.Msg{Type: wire.UsageIs, Count: 1}
	answer.UUID[0] = m.UUID[0]
	if !slices.Contains(v.bound, uuid) {
		answer.Code = wire.ErrNoGPU
		answer.SetText(fmt.Sprintf("this vGPU is not on %s", uuid))
		l.send(c, &answer, -1)
		l.readAgain(c, l.observerRests(c, 1))
		return
	}
	l.lookNowAndAgain(uuid)
	_, used := l.memoryOn(v, uuid)
	answer.A = [4]uint64{l.memoryLimit(v, uuid), used, l.heldOfLate(v, l.now())}
	answer.Others = l.memoryOfOthers(v, uuid)
	all, asker := v.processesOn(uuid), c.observer.process
	rest := l.observerRests(c, askCost(len(all)))
	l.poller.remove(c.fd, c.token)
	v.lookups.add(func() {
		seen := seenBy(asker, all)
		l.poller.post(func() {
			answer.A[3] = uint64(len(seen))
			l.send(c, &answer, -1)
			l.sendProcesses(c, seen)
			l.listenAfter(c, rest)
		})
	})
}

func (l *loop) sendProcesses(c *conn, all []wire.Process) {
	for len(all) > 0 {
		m := wire.Msg{Type: wire.Processes}
		n := copy(m.Processes()[:], all)
		m.Count = uint32(n)
		if all = all[n:]; len(all) == 0 {
			m.A[0] = 1
		}
		l.send(c, &m, -1)
	}
}

// processOn is a process and what it uses of a GPU's memory.
type processOn struct {
	process
	bytes uint64
}

// processesOn are the processes of v on a GPU. On one of several, those that use
// none of its memory are not there.
func (v *vgpu) processesOn(uuid arbiter.UUID) (all []processOn) {
	i := slices.Index(v.bound, uuid)
	for _, c := range v.clients {
		if used := c.used(i); used > 0 || len(v.bound) == 1 {
			all = append(all, processOn{c.process, used})
		}
	}
	return all
}
