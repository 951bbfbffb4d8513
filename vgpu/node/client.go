// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// client is a process that has a page. It lives until its process is dead: a
// connection that is hung up releases nothing (R6).
type client struct {
	process
	id     uint64
	v      *vgpu
	page   *wire.Page
	inode  uint64 // of the page's memfd
	pidfd  int
	token  uint64
	conn   *conn // nil while it is hung up
	stats  stats
	joined bool          // the page stands in the store and may be opened (R7)
	execed time.Duration // see hungUp.since

	// As they were when the turn began.
	idleBefore, submittedBefore uint64
	gapsBefore                  arbiter.Gaps
	idleWanted                  uint64 // when somebody began to wait in it

	// When its gate was opened.
	completionsBefore uint64
	drained           bool

	leases [wire.MaxUUIDs]lease // by the vGPU's GPUs
}

// startTurn notes where the accounts of the clients of v stand.
func (v *vgpu) startTurn() {
	for _, c := range v.clients {
		c.startTurn()
	}
}

func (c *client) startTurn() {
	idle := c.page.IdleNS().Load()
	if idle != c.idleBefore { // else no gap has ended since
		for i := range c.gapsBefore {
			c.gapsBefore[i] = c.page.Gaps()[i].Load()
		}
	}
	c.idleBefore, c.idleWanted = idle, idle
	c.submittedBefore = c.page.Submitted().Load()
}

// addClient takes in a client with its page and watches its process. It owns
// pidfd and page from now on, also on error.
func (l *loop) addClient(v *vgpu, p process, pidfd int, id uint64, page *wire.Page, inode uint64) (*client, error) {
	c := &client{process: p, id: id, v: v, page: page, inode: inode, pidfd: pidfd}
	token, err := l.poller.add(pidfd, func() {
		if dead(pidfd) {
			l.died(c)
		}
	})
	if err != nil {
		unix.Close(pidfd)
		page.Close()
		return nil, err
	}
	c.token = token
	c.startTurn()
	v.clients = append(v.clients, c)
	if !v.adopted {
		v.before.restart(c)
	} else if v.phase != free {
		l.keepAccount(v)
	}
	l.queueBound(c)
	l.pages[inode] = c
	l.lastClient = max(l.lastClient, id)
	return c, nil
}

// died releases what a client had: its process has ended.
func (l *loop) died(c *client) {
	v := c.v
	l.drop(c)
	l.recovered() // it may have been the one that was waited for
	for _, uuid := range v.bound {
		if g := l.gpus[uuid]; g != nil {
			l.lookAtSwaps(g)
		}
	}
	l.settle(v)
	l.unused(v)
}

// drop forgets a client.
func (l *loop) drop(c *client) {
	v := c.v
	if v.turn.granted != 0 {
		v.turn.done = v.turn.done.and(c.work(l.now(), true))
	}
	v.submissions += c.page.Submitted().Load()
	v.stats.add(c.stats)
	v.clients = slices.DeleteFunc(v.clients, func(other *client) bool { return other == c })
	l.keepAccount(v)
	if c.conn != nil {
		c.conn.client = nil
		l.hangUp(c.conn)
	}
	l.poller.remove(c.pidfd, c.token)
	unix.Close(c.pidfd)
	delete(l.pages, c.inode)
	c.page.Close()
}

// nudge makes the client's thread look at its page. If the message does not fit
// into the socket, others lie there that do the same.
func (l *loop) nudge(c *client) {
	if c.conn == nil {
		return
	}
	err := unix.Sendto(c.conn.fd, l.nudging, unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, nil)
	if err != nil && !errors.Is(err, unix.EAGAIN) {
		l.hangUp(c.conn)
	}
}
