// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// unread accepts TCP connections and reads nothing, until release.
func unread(t *testing.T) (port int, release func()) {
	t.Helper()
	// Connections inherit it. Far less than what a sender may have in flight (see
	// lingering), so that this never drains.
	config := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) (err error) {
		failed := c.Control(func(fd uintptr) {
			err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 4096)
		})
		return errors.Join(failed, err)
	}}
	listen, err := config.Listen(t.Context(), "tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	accepted := make(chan struct{})
	var conns []net.Conn
	go func() {
		defer close(accepted)
		for {
			c, err := listen.Accept()
			if err != nil {
				return
			}
			conns = append(conns, c)
		}
	}()
	released := false
	release = func() {
		if released {
			return
		}
		released = true
		listen.Close()
		<-accepted
		for _, c := range conns {
			c.Close()
		}
	}
	t.Cleanup(release)
	return listen.Addr().(*net.TCPAddr).Port, release
}

// A descriptor that a container passes can be the last reference to a file
// whose close takes as long as the container likes.
func TestADescriptorFromAContainerDoesNotHoldUpVgpud(t *testing.T) {
	hello, bind := packet(wire.Msg{Type: wire.Hello}), packet(wire.Msg{Type: wire.Bind})
	for what, tc := range map[string]struct {
		descriptors int
		say         func(n *node, p *plain, fds []int)
	}{
		"with HELLO":        {1, func(_ *node, p *plain, fds []int) { p.send(hello, fds...) }},
		"with another":      {1, func(_ *node, p *plain, fds []int) { p.send(bind, fds...) }},
		"with rubbish":      {1, func(_ *node, p *plain, fds []int) { p.send([]byte("x"), fds...) }},
		"with an empty one": {1, func(_ *node, p *plain, fds []int) { p.send(nil, fds...) }},
		"behind rubbish":    {1, func(_ *node, p *plain, fds []int) { p.send([]byte("x")); p.send(hello, fds...) }},
		"many":              {40, func(_ *node, p *plain, fds []int) { p.send(hello, fds...) }},
		"unread at a delete": {1, func(n *node, p *plain, fds []int) {
			p.send(hello, fds...)
			r := &v1.DeleteRequest{Container: n.request("a").GetContainer()}
			go func() { _, _ = n.control.Delete(t.Context(), r) }() // List says whether vgpud lives
			n.until("Delete has come", func() bool {
				poller := n.daemon.loop.poller
				poller.mu.Lock()
				defer poller.mu.Unlock()
				return len(poller.posted) > 0
			})
		}},
	} {
		t.Run(what, func(t *testing.T) {
			n := newNode(t, settings{})
			n.create("a")
			n.create("b")
			b := n.client("b") // before: a fork would own the descriptors as well for a moment
			port, release := unread(t)
			held, holds := make(chan struct{}), make(chan struct{})
			if !n.daemon.loop.poller.post(func() { close(holds); <-held }) {
				t.Fatal("vgpud has stopped")
			}
			<-holds
			p := n.connect("a")
			var fds []int
			for range tc.descriptors {
				fd, err := lingering(port)
				if err != nil {
					t.Fatal(err)
				}
				fds = append(fds, fd)
			}
			tc.say(n, p, fds)
			for _, fd := range fds {
				unix.Close(fd) // not the last one: that lies in the packet
			}
			close(held)
			// Whatever vgpud does with it, and when, it answers.
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			for range 100 {
				if _, err := n.control.List(ctx, &v1.ListRequest{}); err != nil {
					release()
					t.Fatalf("vgpud does not answer: %v", err)
				}
			}
			b.ask("work", "work: passed")
		})
	}
}

// Vgpud's descriptors are for all.
func TestAContainerDoesNotUseUpVgpudsDescriptors(t *testing.T) {
	n := newProcessNode(t, settings{gpus: 1})
	n.create("greedy")
	n.create("b")
	open := func() int {
		entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.pid))
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := open()
	var all []*plain // those beyond wait in the queue of the socket, which holds 128
	for range maxConns + 100 {
		all = append(all, n.connect("greedy"))
	}
	n.until("as many as may be are there", func() bool { return open() >= before+maxConns })
	b := n.client("b")
	b.ask("work", "work: passed")
	b.ask("done", "done: ")
	if got := open(); got > before+maxConns+8 { // the client's page and process are among the 8
		t.Errorf("vgpud has %d descriptors, and had %d", got, before)
	}
	for _, p := range all {
		p.close()
	}
	n.client("greedy").ask("work", "work: passed")
}

func TestAProcessGetsAFewPagesOnly(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	for i := range maxPages + 3 {
		p := n.connect("a")
		p.send(packet(wire.Msg{Type: wire.Hello}))
		m, fd, _ := p.recv()
		if fd >= 0 {
			unix.Close(fd)
		}
		if want := map[bool]wire.Type{true: wire.Welcome, false: wire.Refused}[i < maxPages]; m.Type != want {
			t.Errorf("HELLO number %d is answered by %d, not %d", i+1, m.Type, want)
		}
	}
}

func TestWhatClientsCouldNotGateIsCounted(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	a := n.client("a")
	a.tell("stats 3 5")
	n.until("it is counted", func() bool { return n.vgpu("a").GetUngated() == 3 && n.vgpu("a").GetUnknownNames() == 5 })
	b := n.client("a")
	b.tell("stats 1 1")
	a.kill()
	n.until("the sum is kept", func() bool { return n.vgpu("a").GetUngated() == 4 && n.vgpu("a").GetClients() == 1 })
	if r := n.vgpu("a").GetReason(); r != "" {
		t.Errorf("reason: %s", r)
	}
}

func TestAContainerCanNotFloodTheLog(t *testing.T) {
	var log lines
	n := &node{t: t, settings: settings{gpus: 1}, state: filepath.Join(t.TempDir(), "vgpu"), created: map[string]string{}, log: &log}
	n.start()
	t.Cleanup(func() { n.stop() })
	n.create("a")
	const times = 20
	for range times {
		p := n.connect("a")
		p.send([]byte("x"))
		p.recv()
		p.close()
		p = n.connect("a") // binds, and gives up
		p.send(packet(wire.Msg{Type: wire.Hello, Protocol: wire.Protocol}))
		_, fd, _ := p.recv()
		unix.Close(fd)
	}
	for range times {
		c := n.client("a") // is bound anew
		c.kill()
	}
	n.stop()
	if got := log.above(t, "level=debug"); got > 20 {
		t.Errorf("%d lines in the log", got)
	}
}

// lines is a log.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

// above counts the lines without what is in them at a lower level.
func (l *lines) above(t *testing.T, not string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.b.String()) {
		if !strings.Contains(line, not) && !strings.Contains(line, "level=trace") {
			t.Log(line)
			n++
		}
	}
	return n
}

// count is how many lines have a text in them.
func (l *lines) count(text string) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.b.String()) {
		if strings.Contains(line, text) {
			n++
		}
	}
	return n
}
