// SPDX-License-Identifier: Apache-2.0

package driver_test

import (
	"net"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/vgpu/wire"
	"golang.org/x/sys/unix"
)

// arbiter is a vgpud of a few lines: the test decides what it does.
type arbiter struct {
	t       testing.TB
	dir     string
	gpus    [][16]byte
	refuse  *wire.Msg   // the answer to BIND instead of BOUND
	auto    atomic.Bool // grant every PENDING at once
	clients chan *client
	hellos  atomic.Int32
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
	a := &arbiter{t: t, dir: t.TempDir(), gpus: [][16]byte{uuid(1)}, clients: make(chan *client, 64)}
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: filepath.Join(a.dir, wire.Socket), Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.AcceptUnix()
			if err != nil {
				return
			}
			go a.serve(conn)
		}
	}()
	return a
}

func (a *arbiter) serve(conn *net.UnixConn) {
	defer conn.Close()
	c := &client{t: a.t, conn: conn, msgs: make(chan wire.Msg, 1024)}
	buf := make([]byte, wire.MsgSize)
	for {
		n, err := conn.Read(buf)
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
			page, fd, err := wire.NewPage(uint64(a.hellos.Add(1)))
			if err != nil {
				a.t.Error(err)
				return
			}
			c.page = page
			w := wire.Msg{Type: wire.Welcome, Protocol: wire.Protocol, A: [4]uint64{page.Client()}}
			_, _, err = conn.WriteMsgUnix(w.Marshal(make([]byte, wire.MsgSize)), unix.UnixRights(fd), nil)
			unix.Close(fd)
			if err != nil {
				return
			}
			a.clients <- c
		case wire.Bind:
			w := wire.Msg{Type: wire.Bound, Count: uint32(len(a.gpus))}
			copy(w.UUID[:], a.gpus)
			if a.refuse != nil {
				w = *a.refuse
			}
			c.send(w)
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

func (c *client) state() string { return wire.StateName(wire.State(c.page.Word().Load())) }

// is checks the state of the grant word.
func (c *client) is(want string) {
	c.t.Helper()
	if got := c.state(); got != want {
		c.t.Fatalf("the word is %s, want %s", got, want)
	}
}

// grant: CLOSED(e) -> OPEN(e+1) or IDLE(e+1).
func (c *client) grant() {
	w := c.page.Word().Load()
	if wire.State(w) != wire.Closed {
		return
	}
	to := wire.Open
	if c.page.Waiting().Load() == 0 {
		to = wire.Idle
	}
	c.page.Word().CompareAndSwap(w, wire.MakeWord(to, wire.Epoch(w)+1))
	c.page.Wake()
}

// revoke takes the grant; true if it has to be drained first.
func (c *client) revoke() bool {
	for {
		w := c.page.Word().Load()
		to := wire.Draining
		switch wire.State(w) {
		case wire.Closed, wire.Draining:
			return wire.State(w) == wire.Draining
		case wire.Idle:
			to = wire.Closed
		}
		if c.page.Word().CompareAndSwap(w, wire.MakeWord(to, wire.Epoch(w))) {
			c.send(wire.Msg{Type: wire.Nudge})
			return to == wire.Draining
		}
	}
}

// want says that somebody else waits.
func (c *client) want(on uint32) {
	c.page.Wanted().Store(on)
	c.send(wire.Msg{Type: wire.Nudge})
}
