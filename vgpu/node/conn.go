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
	"github.com/vgpu-shim/vgpu/vgpu/request"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// maxConns bounds the connections, and with them the clients, of one vGPU: a
// container must not use up the daemon's descriptors. Connections that are still
// being closed count as well.
const maxConns = 1024

// maxPages bounds the pages of one process. It has one; one more for each exec
// whose end was not noticed yet.
const maxPages = 8

// maxDescriptors is how many descriptors one message can carry (SCM_MAX_FD).
const maxDescriptors = 253

// conn is one connection of a client's process.
type conn struct {
	v      *vgpu
	fd     int
	token  uint64
	client *client // nil before Hello
	closed bool
	asks   int // for memory, that wait for an answer

	observer *observer // nil if it is none
}

// accept takes in the connections that wait on v's socket.
func (l *loop) accept(v *vgpu) {
	for range 16 {
		// What is accepted may hold descriptors already, so it is not accepted
		// at all.
		if len(v.conns)+v.chores.left() >= maxConns || len(v.clients)+len(v.expected) >= maxConns {
			l.once(v, logrus.WarnLevel, "a vGPU has as many processes or connections as it may; more of them wait", nil)
			l.rest(v)
			return
		}
		fd, _, err := unix.Accept4(v.listen, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
		if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.ECONNABORTED) || errors.Is(err, unix.EINTR) {
			return
		}
		if err != nil {
			// Most likely out of descriptors: asking again at once would
			// only burn time, so this socket rests for a moment.
			l.once(v, logrus.ErrorLevel, "failed to accept a client", logrus.Fields{logrus.ErrorKey: err})
			l.rest(v)
			return
		}
		c := &conn{v: v, fd: fd}
		if c.token, err = l.poller.add(fd, func() { l.readable(c) }); err != nil {
			v.chores.close(fd)
			l.once(v, logrus.ErrorLevel, "failed to watch a client", logrus.Fields{logrus.ErrorKey: err})
			continue
		}
		v.conns[c] = struct{}{}
	}
}

// rest stops accepting on v's socket for a moment.
func (l *loop) rest(v *vgpu) {
	l.poller.remove(v.listen, v.listenToken)
	t := &timer{}
	t.fire = func() {
		if v.listen < 0 {
			return
		}
		token, err := l.poller.add(v.listen, func() { l.accept(v) })
		if err != nil {
			l.arm(t, l.now()+100*time.Millisecond)
			return
		}
		v.listenToken = token
	}
	l.arm(t, l.now()+100*time.Millisecond)
}

// readable reads one message. One a round: a client that floods its socket does
// not keep the others waiting.
//
// A packet is looked at before it is taken: the loop must not become the last
// owner of a descriptor that came along, even for the moment in which the kernel
// drops one that does not fit.
func (l *loop) readable(c *conn) {
	n, _, flags, _, err := unix.Recvmsg(c.fd, l.msg[:], nil, unix.MSG_DONTWAIT|unix.MSG_PEEK)
	if errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EINTR) {
		return
	}
	if err != nil || n == 0 { // hung up; an empty packet says no more
		l.hangUp(c)
		return
	}
	m, err := wire.Parse(l.msg[:n])
	if err == nil {
		switch {
		case flags&unix.MSG_CTRUNC == 0:
			var rest [1]byte
			_, _ = unix.Read(c.fd, rest[:]) // takes the whole packet
			err = l.message(c, &m)
		case m.Type == wire.Hello && c.client == nil && c.observer == nil:
			l.takePage(c, &m)
		default:
			err = fmt.Errorf("a descriptor with a message of type %d", m.Type)
		}
	}
	if err != nil {
		l.rubbish(c.v, err)
		l.hangUp(c)
	}
}

// takePage receives the page that comes with a HELLO, off the loop, and says
// that HELLO then. Nothing else of the connection is read until that is done.
func (l *loop) takePage(c *conn, m *wire.Msg) {
	l.poller.remove(c.fd, c.token)
	hello := *m
	c.v.chores.add(func() {
		b := receivePage(c.fd)
		if !l.poller.post(func() { l.pageCame(c, &hello, b) }) {
			b.close()
		}
	})
}

// brought is a page that a client brought.
type brought struct {
	page  *wire.Page
	inode uint64
	err   error // why it can not be used
	bad   error // it is no page but rubbish
}

func (b *brought) close() {
	if b.page != nil {
		b.page.Close()
		b.page = nil
	}
}

// receivePage takes a packet that carries descriptors. It keeps none of them.
func receivePage(sock int) *brought {
	var packet [wire.MsgSize]byte
	control := make([]byte, unix.CmsgSpace(4*maxDescriptors))
	_, n, _, _, err := unix.Recvmsg(sock, packet[:], control, unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return &brought{bad: err}
	}
	fds := descriptors(control[:n])
	defer func() {
		for _, fd := range fds {
			unix.Close(fd)
		}
	}()
	if len(fds) != 1 {
		return &brought{bad: fmt.Errorf("%d descriptors with a HELLO", len(fds))}
	}
	page, err := wire.MapPage(fds[0])
	if err != nil {
		return &brought{err: err}
	}
	b := &brought{page: page}
	if b.inode, b.err = inodeOf(fds[0]); b.err != nil {
		b.close()
	}
	return b
}

func (l *loop) pageCame(c *conn, m *wire.Msg, b *brought) {
	defer b.close() // unless somebody keeps it
	if c.closed {
		return
	}
	if b.bad != nil {
		l.rubbish(c.v, b.bad)
		l.hangUp(c)
		return
	}
	token, err := l.poller.add(c.fd, func() { l.readable(c) })
	if err != nil {
		l.fail(c, err)
		return
	}
	c.token = token
	l.hello(c, m, b)
}

// descriptors takes the descriptors out of a control message.
func descriptors(oob []byte) []int {
	if len(oob) == 0 {
		return nil
	}
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	var fds []int
	for i := range msgs {
		if got, err := unix.ParseUnixRights(&msgs[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}

// message handles what a client said. An error means that it is rubbish.
func (l *loop) message(c *conn, m *wire.Msg) error {
	if c.observer != nil {
		return l.fromObserver(c, m)
	}
	switch m.Type {
	case wire.Hello:
		if c.client != nil {
			return errors.New("a second HELLO")
		}
		l.hello(c, m, nil)
		return nil
	case wire.Bind:
		// One before HELLO is asked again after it: after a reconnection the
		// client's threads may use a socket before its own thread has said
		// HELLO on it.
		if c.client != nil {
			l.bind(c)
		}
		return nil
	case wire.Pending, wire.IdleMsg, wire.Drained:
		// Doorbells. One before HELLO is covered by it.
		if c.client != nil {
			l.rang(c.v)
		}
		return nil
	case wire.Stats:
		if c.client != nil { // totals of its process
			c.client.stats = stats{unhooked: m.A[0], unknown: m.A[1]}
		}
		return nil
	case wire.Memory:
		// One before HELLO is asked again after it, as BIND is.
		if c.client != nil {
			l.memoryAsked(c, m)
		}
		return nil
	case wire.Identity:
		// A client is told by BOUND; that it may say this is older than observers.
		if c.client == nil {
			l.identity(c, m)
		}
		return nil
	}
	return fmt.Errorf("a message of type %d from a client", m.Type)
}

// hello makes the client of a connection, or finds it again by the page that it
// brought.
func (l *loop) hello(c *conn, m *wire.Msg, b *brought) {
	v := c.v
	if m.Protocol > wire.Protocol {
		l.refuse(c, wire.ErrProtocol, fmt.Sprintf("this process speaks protocol %d, vgpud on this node up to %d: upgrade vgpud", m.Protocol, wire.Protocol))
		l.hangUp(c)
		return
	}
	if v.removed {
		l.refuse(c, wire.ErrRemoved, "the container is being removed")
		l.hangUp(c)
		return
	}
	p, pidfd, err := peer(c.fd)
	if err != nil {
		if !errors.Is(err, errGone) {
			l.once(v, logrus.ErrorLevel, "failed to identify a client", logrus.Fields{logrus.ErrorKey: err})
			l.refuse(c, wire.ErrInternal, err.Error())
		}
		l.hangUp(c)
		return
	}
	if b == nil {
		l.newClient(c, p, pidfd)
	} else {
		l.oldClient(c, m, p, pidfd, b)
	}
}

// crowded says whether a process has as many pages as it may.
func (v *vgpu) crowded(p process) bool {
	n := 0
	for _, c := range v.clients {
		if c.process == p {
			n++
		}
	}
	return n >= maxPages
}

// newClient gives the process behind c a page. The page is handed out once it
// stands in the store (R7).
func (l *loop) newClient(c *conn, p process, pidfd int) {
	v := c.v
	if v.crowded(p) {
		unix.Close(pidfd)
		l.refuse(c, wire.ErrInternal, "this process has too many pages")
		l.hangUp(c)
		return
	}
	if slices.ContainsFunc(v.clients, func(old *client) bool { return old.process == p && old.conn == nil }) {
		l.look(v) // it may have become another program while it was hung up
	}
	l.lastClient++
	id := l.lastClient
	page, fd, err := wire.NewPage(id)
	var inode uint64
	if err == nil {
		if inode, err = inodeOf(fd); err != nil {
			unix.Close(fd)
			page.Close()
		}
	}
	if err != nil {
		unix.Close(pidfd)
		l.fail(c, err)
		return
	}
	page.AbsenceMS().Store(uint32(l.absence.Milliseconds()))
	cl, err := l.addClient(v, p, pidfd, id, page, inode)
	if err != nil {
		unix.Close(fd)
		l.fail(c, err)
		return
	}
	cl.conn, c.client = c, cl
	l.saved(v, func(err error) {
		defer unix.Close(fd)
		if c.closed || cl.conn != c {
			return // it died, or was removed
		}
		if err != nil {
			cl.conn, c.client = nil, nil
			l.died(cl) // it never had a page
			l.fail(c, err)
			return
		}
		l.join(cl)
		l.send(c, &wire.Msg{Type: wire.Welcome, Protocol: wire.Protocol, A: [4]uint64{id}}, fd)
	})
}

// join lets a new page take part. If its vGPU holds, it opens at once.
func (l *loop) join(c *client) {
	c.joined = true
	if c.v.phase == holding {
		if c.v.turn.taking {
			l.wanted(c, true)
		}
		l.settle(c.v)
	}
}

// oldClient finds the client whose page came along: its connection broke, or
// vgpud was restarted.
func (l *loop) oldClient(c *conn, m *wire.Msg, p process, pidfd int, b *brought) {
	v := c.v
	reject := func(why string) {
		unix.Close(pidfd)
		l.refuse(c, wire.ErrBadPage, why)
		l.hangUp(c)
	}
	if b.err != nil {
		reject(b.err.Error())
		return
	}
	inode := b.inode
	if cl := l.pages[inode]; cl != nil {
		if cl.v != v || cl.process != p {
			reject("the page belongs to another process")
			return
		}
		unix.Close(pidfd)
		if cl.conn != nil {
			cl.conn.client = nil
			l.hangUp(cl.conn)
		}
		l.believe(cl, true)
		l.welcomeBack(c, cl)
		return
	}

	var id uint64
	known := false
	for i, x := range v.expected {
		if x.process == p && x.Inode == inode {
			id, known = x.Client, true
			l.forget(x)
			v.expected = slices.Delete(v.expected, i, i+1)
			break
		}
	}
	if !known { // the record was lost
		if v.crowded(p) {
			reject("this process has too many pages")
			return
		}
		l.lastClient++
		id = l.lastClient
		l.once(v, logrus.WarnLevel, "a process came back that was not in the store", logrus.Fields{"pid": p.PID})
		if v.lost && len(v.bound) == 0 {
			v.bound = l.boundAsSaid(m)
		}
	}
	page := b.page
	b.page = nil // kept
	if v.adopted {
		// Too late: an open word that it brings is of a turn that was given up.
		revokeWord(page)
	}
	cl, err := l.addClient(v, p, pidfd, id, page, inode)
	if err != nil {
		l.fail(c, err)
		return
	}
	cl.joined = true
	l.believe(cl, false)
	if known {
		l.welcomeBack(c, cl)
		return
	}
	cl.conn, c.client = c, cl
	l.saved(v, func(err error) {
		switch {
		case c.closed || cl.conn != c:
		case err != nil:
			l.fail(c, err)
		default:
			l.welcomeBack(c, cl)
		}
	})
}

// boundAsSaid are the GPUs on which a client says that its vGPU is. It is
// believed only where the record is lost.
func (l *loop) boundAsSaid(m *wire.Msg) []arbiter.UUID {
	var all []arbiter.UUID
	for _, raw := range m.UUID[:m.Count] {
		uuid := arbiter.UUID(wire.FormatUUID(raw))
		if l.gpus[uuid] == nil || slices.Contains(all, uuid) {
			return nil
		}
		all = append(all, uuid)
	}
	return all
}

func (l *loop) welcomeBack(c *conn, cl *client) {
	cl.conn, c.client = c, cl
	cl.execed = 0
	cl.page.AbsenceMS().Store(uint32(l.absence.Milliseconds())) // may be configured otherwise now
	l.send(c, &wire.Msg{Type: wire.Welcome, Protocol: wire.Protocol, A: [4]uint64{cl.id}}, -1)
	v := cl.v
	if !v.adopted {
		l.recovered()
		return
	}
	// Bells were lost while it was hung up: look, and let it look.
	l.rang(v)
	l.nudge(cl)
}

// bind answers with the GPUs of the client's vGPU. Who asks again before the
// answer gets one answer.
func (l *loop) bind(c *conn) {
	v := c.v
	if slices.Contains(v.binders, c) {
		return
	}
	v.binders = append(v.binders, c)
	if v.adopted {
		l.bindLooked(v)
	}
}

// bound is the engine's answer. It is told to the clients once it stands in the
// store: a restarted vgpud must know on which GPU they are.
func (l *loop) bound(v *vgpu, gpus []arbiter.UUID) {
	if slices.Equal(v.bound, gpus) {
		if v.binding == 0 {
			l.answerBind(v)
		}
		return
	}
	v.bound = gpus
	v.binding++
	l.once(v, logrus.InfoLevel, "vGPU bound", logrus.Fields{"gpus": gpus})
	l.saved(v, func(err error) {
		v.binding--
		switch {
		case v.removed, v.bound == nil, v.binding > 0: // meanwhile; it may be bound anew
			return
		case err != nil:
			v.bound = nil // written again when it is asked for again
			l.unbindable(v, err.Error())
			return
		case v.req.Bind == request.BindLate && l.anyDown(gpus): // meanwhile, and nobody was told yet
			l.event(arbiter.Event{Kind: arbiter.Unused, VGPU: v.key})
			if s, _ := l.engine.VGPU(v.key); s.State == arbiter.Unbound { // else it stands at its gate already
				v.bound = nil
				l.event(arbiter.Event{Kind: arbiter.Bind, VGPU: v.key})
				return
			}
		}
		l.tellBound(v)
		l.answerBind(v)
	})
}

func (l *loop) anyDown(gpus []arbiter.UUID) bool {
	return slices.ContainsFunc(gpus, func(uuid arbiter.UUID) bool {
		return l.gpus[uuid] != nil && l.gpus[uuid].causes.down() != ""
	})
}

func (l *loop) answerBind(v *vgpu) {
	m := wire.Msg{Type: wire.Bound}
	if err := v.putUUIDs(&m); err != nil {
		l.unbindable(v, err.Error())
		return
	}
	v.boundEarly("")
	binders := v.binders
	v.binders = nil
	for _, c := range binders {
		if c.observer != nil {
			l.tellIdentity(c)
		} else {
			l.send(c, &m, -1)
		}
	}
	l.rang(v) // a thread that came to the gate before its vGPU was bound
}

// bindWaits tells those that asked why they wait.
func (l *loop) bindWaits(v *vgpu, reason string) {
	if l.recovery != nil {
		return // GPUs are about to come up
	}
	if l.tellBind(eventBindWaits, v, reason) {
		l.log.WithFields(v.fields()).WithField("reason", reason).Info("a vGPU waits for a GPU")
	}
	m := wire.Msg{Type: wire.Wait}
	m.SetText(reason)
	for _, c := range slices.Clone(v.binders) { // hanging up takes a connection out of it
		l.send(c, &m, -1)
	}
}

func (l *loop) unbindable(v *vgpu, reason string) {
	v.boundEarly(reason)
	if l.recovery != nil {
		return // GPUs may still come up: asked again then
	}
	l.tellBind(eventBindRefused, v, reason)
	binders := v.binders // hanging up takes a connection out of it
	v.binders = nil
	for _, c := range binders {
		l.refuse(c, wire.ErrNoGPU, reason)
		if c.observer != nil {
			l.hangUp(c)
		}
	}
}

// saved writes the record of v and then runs fn in the loop.
func (l *loop) saved(v *vgpu, fn func(error)) {
	l.store.save(v.record(), func(err error) {
		l.poller.post(func() {
			if err != nil {
				l.once(v, logrus.ErrorLevel, "failed to keep a vGPU's record", logrus.Fields{logrus.ErrorKey: err})
			}
			fn(err)
		})
	})
}

// send sends an answer, without waiting. It must not be lost, so a client whose
// socket is full is hung up, and asks again when it is back.
func (l *loop) send(c *conn, m *wire.Msg, fd int) {
	if c.closed {
		return
	}
	var buf [wire.MsgSize]byte
	var oob []byte
	if fd >= 0 {
		oob = unix.UnixRights(fd)
	}
	if _, err := unix.SendmsgN(c.fd, m.Marshal(buf[:]), oob, nil, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL); err != nil {
		l.hangUp(c)
	}
}

func (l *loop) refuse(c *conn, code wire.Code, why string) {
	m := wire.Msg{Type: wire.Refused, Code: code}
	m.SetText(why)
	l.send(c, &m, -1)
}

// fail refuses a client because of a fault of ours.
func (l *loop) fail(c *conn, err error) {
	l.once(c.v, logrus.ErrorLevel, "failed to serve a client", logrus.Fields{logrus.ErrorKey: err})
	l.refuse(c, wire.ErrInternal, err.Error())
	l.hangUp(c)
}

// hangUp closes a connection. The client behind it stays what it is.
func (l *loop) hangUp(c *conn) {
	if c.closed {
		return
	}
	c.closed = true
	l.poller.remove(c.fd, c.token)
	c.v.chores.close(c.fd)
	delete(c.v.conns, c)
	c.v.binders = slices.DeleteFunc(c.v.binders, func(b *conn) bool { return b == c })
	if c.observer != nil {
		l.dropObserver(c.v, c.observer)
	}
	if cl := c.client; cl != nil && cl.conn == c {
		cl.conn = nil
		l.look(c.v)
	}
}

// rubbish counts what a client should not have said, and logs the first.
func (l *loop) rubbish(v *vgpu, err error) {
	v.rubbish++
	l.keepAccount(v)
	l.once(v, logrus.WarnLevel, "a client spoke rubbish and was disconnected; more of it is only counted", logrus.Fields{logrus.ErrorKey: err})
}

// once logs what a container can cause as often as it likes: the first time, and
// then at debug level.
func (l *loop) once(v *vgpu, level logrus.Level, what string, fields logrus.Fields) {
	if v.said[what] {
		level = logrus.DebugLevel
	}
	v.said[what] = true
	l.log.WithFields(v.fields()).WithFields(fields).Log(level, what)
}

func inodeOf(fd int) (uint64, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return 0, fmt.Errorf("failed to stat a page: %w", err)
	}
	return st.Ino, nil
}
