// SPDX-License-Identifier: Apache-2.0

package opencl_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/hooks/driver/test/jail"
	"github.com/vgpu-shim/vgpu/hooks/gate/pagetest"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// arbiter is a vgpud of a few lines: the test decides what it does.
type arbiter struct {
	t       *testing.T
	dir     string
	uuids   [][16]byte // of the GPUs that are bound
	refuse  bool       // every BIND
	hellos  atomic.Int32
	clients chan *client
	limit   uint64 // of memory
	ungated atomic.Uint64
}

// client is one connected process.
type client struct {
	t    *testing.T
	conn *net.UnixConn
	page *wire.Page
	msgs chan wire.Msg
}

func newArbiter(t *testing.T) *arbiter {
	t.Helper()
	a := &arbiter{t: t, dir: t.TempDir(), uuids: [][16]byte{{1}}, clients: make(chan *client, 16), limit: 1 << 40}
	a.names("cpu")
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

// names says which devices are GPUs that the vGPU may be given, one a line.
func (a *arbiter) names(gpus ...string) {
	a.t.Helper()
	if err := os.WriteFile(filepath.Join(a.dir, wire.GPUs), []byte(strings.Join(gpus, "\n")+"\n"), 0o600); err != nil {
		a.t.Fatal(err)
	}
}

func (a *arbiter) serve(conn *net.UnixConn) {
	defer conn.Close()
	c := &client{t: a.t, conn: conn, msgs: make(chan wire.Msg, 1024)}
	defer close(c.msgs)
	for buf := make([]byte, wire.MsgSize); ; {
		n, err := conn.Read(buf)
		if err != nil || n == 0 {
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
			w := wire.Msg{Type: wire.Welcome, Protocol: wire.Protocol, A: [4]uint64{page.Client()}}
			_, _, err = conn.WriteMsgUnix(w.Marshal(make([]byte, wire.MsgSize)), unix.UnixRights(fd), nil)
			unix.Close(fd)
			if err != nil {
				return
			}
			c.page = page
			a.clients <- c
		case wire.Bind:
			w := wire.Msg{Type: wire.Bound, Count: uint32(len(a.uuids))}
			copy(w.UUID[:], a.uuids)
			if a.refuse {
				w = wire.Msg{Type: wire.Refused, Code: wire.ErrNoGPU}
				w.SetText("there is none")
			}
			c.send(w)
		case wire.Memory:
			a.memory(c, m)
		case wire.Stats:
			a.ungated.Store(m.A[0])
		default:
			c.msgs <- m
		}
	}
}

// memory leases what is asked for, exactly.
func (a *arbiter) memory(c *client, m wire.Msg) {
	page := &c.page.Memory()[m.A[0]]
	answer := wire.Msg{Type: wire.MemoryIs, A: [4]uint64{m.A[0], a.limit, 0, m.A[3]}}
	if lack := m.A[1] - min(m.A[1], page.Credit.Load()); page.Leased.Load()+lack > a.limit {
		answer.Code = wire.ErrMemory
	} else {
		page.Leased.Add(lack)
		page.Credit.Add(lack)
	}
	answer.A[2] = page.Leased.Load() - page.Credit.Load()
	c.send(answer)
}

// used is what the process holds of its GPU's memory.
func (c *client) used() uint64 {
	m := &c.page.Memory()[0]
	return m.Leased.Load() - m.Credit.Load()
}

// client waits for the next process that says HELLO.
func (a *arbiter) client() *client {
	a.t.Helper()
	select {
	case c := <-a.clients:
		return c
	case <-time.After(jail.Patience):
		a.t.Fatal("no process said HELLO")
	}
	return nil
}

func (c *client) send(m wire.Msg) {
	_, _ = c.conn.Write(m.Marshal(make([]byte, wire.MsgSize)))
}

func (c *client) state() string { return pagetest.State(c.page) }

// grant waits until a thread waits at the gate, and opens it.
func (c *client) grant() {
	c.t.Helper()
	c.until("a thread at the gate", func() bool { return c.page.Waiting().Load() > 0 })
	c.open()
}

func (c *client) open() { pagetest.Open(c.page) }

// revoke takes the grant, or begins to.
func (c *client) revoke() {
	if changed, _ := pagetest.Revoke(c.page); changed {
		c.send(wire.Msg{Type: wire.Nudge})
	}
}

// until waits for something in the page.
func (c *client) until(what string, ok func() bool) {
	c.t.Helper()
	pagetest.Until(c.t, c.page, jail.Patience, what, ok)
}

// becomes waits for a state of the grant word.
func (c *client) becomes(state string) {
	c.t.Helper()
	c.until("the word is "+state, func() bool { return c.state() == state })
}

// turns grants every process that comes whenever it waits, revokes as soon as it can,
// and resumes a drain that a thread at the gate may hold up, until the test ends.
func (a *arbiter) turns() {
	for {
		select {
		case c := <-a.clients:
			go c.turns()
		case <-a.t.Context().Done():
			return
		}
	}
}

func (c *client) turns() {
	tick := time.NewTicker(200 * time.Microsecond)
	defer tick.Stop()
	c.page.Wanted().Store(1)
	for looks := 0; ; looks++ {
		select {
		case _, ok := <-c.msgs:
			if !ok {
				return
			}
		case <-tick.C:
			c.revoke()
		}
		w := c.page.Word().Load()
		switch waits := c.page.Waiting().Load() > 0; {
		case wire.State(w) != wire.Draining:
			looks = 0
			if waits {
				c.open()
				c.send(wire.Msg{Type: wire.Nudge})
			}
		case waits && looks > 50:
			pagetest.Resume(c.page)
		}
	}
}
