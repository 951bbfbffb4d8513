// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/hooks/gate/pagetest"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// arbiter is a vgpud of a few lines: the test decides what it does.
type arbiter struct {
	t       testing.TB
	dir     string
	gpus    [][16]byte
	refuse  *wire.Msg   // the answer to BIND instead of BOUND
	auto    atomic.Bool // grant every PENDING at once
	slow    atomic.Bool // answer no BIND; the test does
	deaf    atomic.Bool // answer no HELLO
	gone    atomic.Bool // the vGPU was removed: refuse every HELLO
	clients chan *client
	hellos  atomic.Int32
	absence atomic.Uint32 // absence_ms of new pages
	ledger  *ledger
	stopped sync.RWMutex // while it is locked, no more than one message of each process is read

	mu       sync.Mutex
	listener *net.UnixListener
	conns    []*net.UnixConn
}

// client is one connected process.
type client struct {
	t    testing.TB
	conn *net.UnixConn
	page *wire.Page
	msgs chan wire.Msg
	last wire.Msg
}

func uuid(b byte) (u [16]byte) {
	for i := range u {
		u[i] = b
	}
	return u
}

func newArbiter(t testing.TB) *arbiter {
	t.Helper()
	a := &arbiter{t: t, dir: t.TempDir(), gpus: [][16]byte{uuid(1)}, clients: make(chan *client, 64), ledger: newLedger()}
	a.back()
	t.Cleanup(a.away)
	return a
}

// back starts to listen, under another name until it does: who finds that nobody
// listens opens the gate.
func (a *arbiter) back() {
	a.t.Helper()
	sock := filepath.Join(a.dir, wire.Socket)
	making := filepath.Join(a.dir, "."+wire.Socket)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: making, Net: "unixpacket"})
	if err != nil {
		a.t.Fatal(err)
	}
	l.SetUnlinkOnClose(false) // as if it was killed
	if err := os.Rename(making, sock); err != nil {
		a.t.Fatal(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.listener = l
	go func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			a.mu.Lock()
			a.conns = append(a.conns, conn)
			a.mu.Unlock()
			go a.serve(conn)
		}
	}()
}

// away is the end of a vgpud: nobody listens any more.
func (a *arbiter) away() {
	a.mu.Lock()
	a.listener.Close()
	a.mu.Unlock()
	a.hangUp()
}

// hangUp closes all connections.
func (a *arbiter) hangUp() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, conn := range a.conns {
		conn.Close()
	}
	a.conns = nil
}

// pageIn is the page that came along with a HELLO, or a new one of that number and
// its descriptor.
func (a *arbiter) pageIn(oob []byte, number uint64) (*wire.Page, []int, error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, nil, err
	}
	var fds []int
	for i := range msgs {
		rights, err := unix.ParseUnixRights(&msgs[i])
		if err != nil {
			return nil, nil, err
		}
		fds = append(fds, rights...)
	}
	if len(fds) > 0 {
		defer unix.Close(fds[0])
		page, err := wire.MapPage(fds[0])
		return page, nil, err
	}
	page, fd, err := wire.NewPage(number)
	if err != nil {
		return nil, nil, err
	}
	page.AbsenceMS().Store(a.absence.Load())
	return page, []int{fd}, nil
}

func (a *arbiter) serve(conn *net.UnixConn) {
	defer conn.Close()
	c := &client{t: a.t, conn: conn, msgs: make(chan wire.Msg, 1024)}
	buf, oob := make([]byte, wire.MsgSize), make([]byte, 64)
	for {
		a.stopped.RLock()
		a.stopped.RUnlock() //nolint:staticcheck // nothing is guarded: it waits
		n, oobn, _, _, err := conn.ReadMsgUnix(buf, oob)
		if err != nil || n == 0 {
			close(c.msgs)
			return
		}
		m, err := wire.Parse(buf[:n])
		if err != nil {
			a.t.Errorf("the client sent %v", err)
			return
		}
		switch m.Type {
		case wire.Hello:
			number := uint64(a.hellos.Add(1))
			if a.gone.Load() {
				c.send(wire.Msg{Type: wire.Refused, Code: wire.ErrRemoved})
				return
			}
			page, fds, err := a.pageIn(oob[:oobn], number)
			if err != nil {
				a.t.Error(err)
				return
			}
			c.page = page
			a.ledger.came(c)
			defer a.ledger.left(c)
			if a.deaf.Load() {
				a.clients <- c
				continue
			}
			w := wire.Msg{Type: wire.Welcome, Protocol: wire.Protocol, A: [4]uint64{page.Client()}}
			_, _, err = conn.WriteMsgUnix(w.Marshal(make([]byte, wire.MsgSize)), unix.UnixRights(fds...), nil)
			for _, fd := range fds {
				unix.Close(fd)
			}
			if err != nil {
				return
			}
			a.clients <- c
		case wire.Bind:
			if a.slow.Load() {
				c.msgs <- m
				continue
			}
			w := wire.Msg{Type: wire.Bound, Count: uint32(len(a.gpus))}
			copy(w.UUID[:], a.gpus)
			if a.refuse != nil {
				w = *a.refuse
			}
			c.send(w)
		case wire.Memory:
			if c.page != nil { // else it is asked again after the HELLO
				a.ledger.answer(c, m)
			}
		case wire.Pending:
			c.msgs <- m
			if a.auto.Load() {
				c.grant()
			}
		default:
			c.msgs <- m
		}
	}
}

// client waits for the next process that says HELLO.
func (a *arbiter) client() *client {
	a.t.Helper()
	select {
	case c := <-a.clients:
		return c
	case <-time.After(patience):
		a.t.Fatal("no process said HELLO")
	}
	return nil
}

func (c *client) send(m wire.Msg) {
	_, _ = c.conn.Write(m.Marshal(make([]byte, wire.MsgSize)))
}

// expect waits for a message of this type; others are dropped.
func (c *client) expect(want wire.Type) {
	c.t.Helper()
	deadline := time.After(patience)
	for {
		select {
		case m, ok := <-c.msgs:
			if !ok {
				c.t.Fatalf("the connection ended; message %d was expected", want)
			}
			if c.last = m; m.Type == want {
				return
			}
		case <-deadline:
			c.t.Fatalf("message %d did not come; the word is %s, waiting %d", want, c.state(), c.page.Waiting().Load())
		}
	}
}

func (c *client) state() string { return pagetest.State(c.page) }

// is checks the state of the grant word.
func (c *client) is(want string) {
	c.t.Helper()
	if got := c.state(); got != want {
		c.t.Fatalf("the word is %s, want %s", got, want)
	}
}

// grant: CLOSED(e) -> OPEN(e+1) or IDLE(e+1).
func (c *client) grant() { pagetest.Open(c.page) }

// revoke takes the grant; true if it has to be drained first.
func (c *client) revoke() bool {
	changed, drains := pagetest.Revoke(c.page)
	if changed {
		c.send(wire.Msg{Type: wire.Nudge})
	}
	return drains
}

// resume gives a turn that is being drained back: DRAINING(e) -> OPEN(e+1).
func (c *client) resume() {
	c.t.Helper()
	if !c.tryResume() {
		c.t.Fatalf("the word is %s and can not be resumed", c.state())
	}
}

// tryResume does that unless the drain is over.
func (c *client) tryResume() bool { return pagetest.Resume(c.page) }

// until waits for something in the page.
func (c *client) until(what string, ok func() bool) {
	c.t.Helper()
	pagetest.Until(c.t, c.page, patience, what, ok)
}

// want says that somebody else waits.
func (c *client) want(on uint32) {
	c.page.Wanted().Store(on)
	c.send(wire.Msg{Type: wire.Nudge})
}
