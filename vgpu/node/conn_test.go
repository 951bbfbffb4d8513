// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/vgpu/arbiter"
	"github.com/vgpu-shim/vgpu/vgpu/request"
	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// plain is a connection of this process.
type plain struct {
	t  *testing.T
	fd int
}

func (n *node) connect(name string) *plain {
	n.t.Helper()
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		n.t.Fatal(err)
	}
	p := &plain{n.t, fd}
	n.t.Cleanup(p.close)
	if err := connectIn(fd, n.created[name]); err != nil {
		n.t.Fatal(err)
	}
	tv := unix.NsecToTimeval(patience.Nanoseconds())
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		n.t.Fatal(err)
	}
	return p
}

func (p *plain) close() {
	if p.fd >= 0 {
		unix.Close(p.fd)
		p.fd = -1
	}
}

func (p *plain) send(packet []byte, fds ...int) {
	p.t.Helper()
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	if _, err := unix.SendmsgN(p.fd, packet, oob, nil, unix.MSG_NOSIGNAL); err != nil {
		p.t.Fatal(err)
	}
}

// recv returns the next message; hung is true if the connection was closed.
func (p *plain) recv() (m wire.Msg, fd int, hung bool) {
	p.t.Helper()
	m, fd, err := recvMsg(p.fd)
	if err != nil {
		if errors.Is(err, errHungUp) || errors.Is(err, unix.ECONNRESET) {
			return m, -1, true
		}
		p.t.Fatal(err)
	}
	return m, fd, false
}

func packet(m wire.Msg) []byte { return m.Marshal(make([]byte, wire.MsgSize)) }

func changed(m wire.Msg, at int, to byte) []byte {
	b := packet(m)
	b[at] = to
	return b
}

func TestRubbishEndsOneConnectionAndNothingElse(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	b.ask("work", "work: passed")
	hello := wire.Msg{Type: wire.Hello}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	for name, say := range map[string]func(*plain){
		"a short packet":         func(p *plain) { p.send([]byte("GET / HTTP/1.1\r\n\r\n")) },
		"a long packet":          func(p *plain) { p.send(make([]byte, 4096)) },
		"an empty packet":        func(p *plain) { p.send(nil) },
		"a wrong size":           func(p *plain) { p.send(changed(hello, 4, 1)) },
		"an unknown type":        func(p *plain) { p.send(changed(hello, 0, 200)) },
		"a message of vgpud":     func(p *plain) { p.send(packet(wire.Msg{Type: wire.Welcome})) },
		"protocol 0":             func(p *plain) { p.send(changed(hello, 2, 0)) },
		"too many UUIDs":         func(p *plain) { p.send(changed(hello, 12, 17)) },
		"zeros":                  func(p *plain) { p.send(make([]byte, wire.MsgSize)) },
		"two descriptors":        func(p *plain) { p.send(packet(hello), int(null.Fd()), int(null.Fd())) },
		"more descriptors":       func(p *plain) { p.send(packet(hello), many(int(null.Fd()), 100)...) },
		"a descriptor with BIND": func(p *plain) { p.send(packet(wire.Msg{Type: wire.Bind}), int(null.Fd())) },
	} {
		p := n.connect("a")
		say(p)
		if _, _, hung := p.recv(); !hung {
			t.Errorf("%s: the connection is not closed", name)
		}
	}
	// A client of the same container and one of another go on.
	b.ask("done", "done: ")
	a.ask("work", "work: passed")

	// An empty packet reads like a hang-up, and is none of them.
	if got := n.vgpu("a").GetRubbish(); got != 11 {
		t.Errorf("vgpud counted %d connections with rubbish", got)
	}

	// A client that speaks rubbish comes back with its page, and loses nothing.
	a.tell("raw 00")
	a.expect("reconnected")
	if got := a.ask("word", "word: "); !strings.HasPrefix(got, "OPEN") {
		t.Fatal(got)
	}
	b.tell("work")
	n.untilState("b", "PENDING")
	a.ask("done", "done: ")
	b.expect("work: passed")
}

func many(fd, n int) []int {
	fds := make([]int, n)
	for i := range fds {
		fds[i] = fd
	}
	return fds
}

func TestAPageThatComesAlongIsNotTrusted(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	n.create("b")
	other := n.client("a")
	other.ask("work", "work: passed")
	memfd := func(size int64, flags int, seal int) int {
		fd, err := unix.MemfdCreate("test", flags|unix.MFD_CLOEXEC)
		if err != nil {
			t.Fatal(err)
		}
		if err := unix.Ftruncate(fd, size); err != nil {
			t.Fatal(err)
		}
		if seal != 0 {
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, seal); err != nil {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() { unix.Close(fd) })
		return fd
	}
	const all = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW | unix.F_SEAL_SEAL
	null, err := unix.Open(os.DevNull, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(null)
	foreign, err := unix.Open(fmt.Sprintf("/proc/%d/fd/%s", other.cmd.Process.Pid, pageFD(t, other.cmd.Process.Pid)), unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(foreign)
	for name, fd := range map[string]int{
		"not a memfd":            null,
		"a page that can shrink": memfd(wire.PageSize, unix.MFD_ALLOW_SEALING, 0),
		"a short page":           memfd(100, unix.MFD_ALLOW_SEALING, all),
		"a page that is no page": memfd(wire.PageSize, unix.MFD_ALLOW_SEALING, all),
		"another process's page": foreign,
	} {
		for _, container := range []string{"a", "b"} {
			p := n.connect(container)
			p.send(packet(wire.Msg{Type: wire.Hello}), fd)
			m, _, hung := p.recv()
			if hung || m.Type != wire.Refused || m.Code != wire.ErrBadPage || m.TextString() == "" {
				t.Errorf("%s: %v %d %q, hung up %v", name, m.Type, m.Code, m.TextString(), hung)
				continue
			}
			if _, _, hung := p.recv(); !hung {
				t.Errorf("%s: the connection is not closed", name)
			}
		}
	}
	if got := other.ask("word", "word: "); !strings.HasPrefix(got, "OPEN") {
		t.Errorf("the other process was disturbed: %s", got)
	}
}

// pageFD is the number of the descriptor of a process's page.
func pageFD(t *testing.T, pid int) string {
	t.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil && strings.Contains(to, "vgpu-page") {
			return e.Name()
		}
	}
	t.Fatal("the process has no page")
	return ""
}

func TestANewerClientIsRefusedWithAReason(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	p := n.connect("a")
	p.send(packet(wire.Msg{Type: wire.Hello, Protocol: wire.Protocol + 1}))
	m, _, _ := p.recv()
	if m.Type != wire.Refused || m.Code != wire.ErrProtocol || !strings.Contains(m.TextString(), "upgrade vgpud") {
		t.Fatalf("%v %d %q", m.Type, m.Code, m.TextString())
	}
	if _, _, hung := p.recv(); !hung {
		t.Fatal("the connection is not closed")
	}
}

func TestBindWaitsForRoom(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a", "memory=10Gi")
	n.create("b", "memory=10Gi")
	a, b := n.client("a"), n.process("b")
	b.ask("start "+n.created["b"], "start: ")
	b.tell("bind")
	n.until("why b waits is shown", func() bool { return strings.Contains(n.vgpu("b").GetReason(), "are reserved") })
	if s := n.vgpu("b").GetState(); s != "UNBOUND" {
		t.Errorf("b is %s", s)
	}
	a.kill()
	if got := b.expect("bind: "); got != gpuUUID(0) {
		t.Error(got)
	}
	if r := n.vgpu("b").GetReason(); r != "" {
		t.Errorf("b is bound, and %q", r)
	}
}

// Else a process that comes later would wait behind one that is dead.
func TestWhoWaitsForRoomAndDiesTakesNone(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a", "memory=10Gi")
	n.create("b", "memory=10Gi")
	n.create("c", "memory=10Gi")
	a, b, c := n.client("a"), n.process("b"), n.process("c")
	b.ask("start "+n.created["b"], "start: ")
	b.tell("bind")
	n.until("b waits", func() bool { return n.vgpu("b").GetReason() != "" })
	c.ask("start "+n.created["c"], "start: ")
	c.tell("bind")
	n.until("c waits", func() bool { return n.vgpu("c").GetReason() != "" })
	b.kill()
	n.until("b is dead", func() bool { return n.vgpu("b").GetReason() == "" })
	a.kill()
	if got := c.expect("bind: "); got != gpuUUID(0) {
		t.Error(got)
	}
}

// Some of those that are told why they wait are gone, and hung up by that.
func TestOneOfThoseThatWaitIsGone(t *testing.T) {
	l := idle(t, 1).loop
	v := &vgpu{key: "a", rec: record{ID: "a", Container: "a"}, listen: -1, adopted: true, req: request.Request{Count: 2}}
	l.add(v)
	var peers [3]int
	for i := range peers {
		pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
		if err != nil {
			t.Fatal(err)
		}
		peers[i] = pair[1]
		c := &conn{v: v, fd: pair[0]}
		v.conns[c] = struct{}{}
		v.binders = append(v.binders, c)
	}
	unix.Close(peers[0])
	l.event(arbiter.Event{Kind: arbiter.Bind, VGPU: v.key})
	for _, c := range v.binders { // no second answer, however often they ask
		l.bind(c)
	}
	for _, peer := range peers[1:] {
		if m, _, err := recvMsg(peer); err != nil || m.Type != wire.Wait || !strings.HasPrefix(m.TextString(), "1 of 2 GPUs") {
			t.Errorf("%d %q %v", m.Type, m.TextString(), err)
		}
		if m, _, err := recvMsg(peer); !errors.Is(err, unix.EAGAIN) {
			t.Errorf("%d %q %v", m.Type, m.TextString(), err)
		}
		unix.Close(peer)
	}
	if len(v.binders) != 2 {
		t.Errorf("%d wait", len(v.binders))
	}
}

func TestBindIsRefusedWithAReasonIfNoGPUFits(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a", "memory=10Gi")
	n.create("b", "memory=10Gi", "when-full=fail")
	a, b := n.client("a"), n.process("b")
	b.ask("start "+n.created["b"], "start: ")
	if got := b.ask("bind", "bind: "); !strings.HasPrefix(got, "refused 2 0 of 1 GPUs") {
		t.Fatal(got)
	}
	if r := n.vgpu("b").GetReason(); r == "" {
		t.Error("vgpu ps does not say why")
	}
	a.kill()
	n.untilState("a", "UNBOUND")
	b.ask("bind", "bind: GPU-")
}

func TestDescriptorsAreGivenBack(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	n.client("a").kill()
	n.until("the process is gone", func() bool { return n.vgpu("a").GetState() == "UNBOUND" })
	before := open()
	for range 20 {
		c := n.process("a")
		c.ask("start "+n.created["a"], "start: ")
		c.kill()
		p := n.connect("a")
		p.send(packet(wire.Msg{Type: wire.Hello}), 0, 1)
		p.recv()
		p.close()
	}
	n.until("every descriptor is given back", func() bool { return open() <= before })
}

// testdata/v1.session is a conversation as a client of protocol 1 has it, byte
// by byte. It is never changed: containers keep their library for weeks, and
// each vgpud serves every protocol that was ever released.
func TestARecordedV1ClientIsServed(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	p := n.connect("a")
	f, err := os.Open("testdata/v1.session")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var page *wire.Page
	steps := 0
	for s := bufio.NewScanner(f); s.Scan(); {
		line := s.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		steps++
		who, rest, _ := strings.Cut(line, " ")
		switch who {
		case "client": // BYTES, then zeros
			b, err := hex.DecodeString(strings.ReplaceAll(rest, " ", ""))
			if err != nil {
				t.Fatal(err)
			}
			p.send(append(b, make([]byte, 512-len(b))...))
		case "vgpud": // BYTES, .. for any; what follows is any
			buf, oob := make([]byte, 1024), make([]byte, 64)
			got, oobn, err := receive(p.fd, buf, oob)
			if err == nil && buf[0] == byte(wire.MemoryIs) {
				// MEMORY is answered since there is a ledger. A client passes over
				// types that it does not know.
				got, oobn, err = receive(p.fd, buf, oob)
			}
			if err != nil || got != 512 {
				t.Fatalf("%s: %d bytes, %v", line, got, err)
			}
			for i, want := range strings.Fields(rest) {
				if want != ".." && hex.EncodeToString(buf[i:i+1]) != want {
					t.Fatalf("%s: byte %d is %02x", line, i, buf[i])
				}
			}
			for _, fd := range descriptors(oob[:oobn]) {
				if page, err = wire.MapPage(fd); err != nil {
					t.Fatal(err)
				}
				defer page.Close()
				unix.Close(fd)
			}
		case "waiting": // N threads at the gate
			page.Waiting().Store(uint32(rest[0] - '0'))
		case "word": // STATE is what the word becomes
			n.until(line, func() bool { return wire.StateName(state(page)) == rest })
		case "idle": // as the client does when its work is complete
			w := page.Word().Load()
			page.Word().CompareAndSwap(w, wire.MakeWord(wire.Idle, wire.Epoch(w)))
		default:
			t.Fatalf("unknown line %q", line)
		}
	}
	if steps < 10 {
		t.Fatalf("only %d steps", steps)
	}
}
