// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/vgpu/wire"
)

// This file is a client of the protocol as hooks/gate is one, without a GPU:
// what is "in flight" is a counter that the test moves. It runs in a process of
// its own, the test binary started again, so that it can be stopped and killed.
// It reads commands from stdin, one a line, and writes one line for each thing
// that happened.

type fake struct {
	observing []int // sockets
	dir       string
	sock      int
	pageFD    int
	page      *wire.Page
	gate      atomic.Int64
	inFlight  atomic.Int64
	welcomed  chan wire.Msg
	answers   chan wire.Msg
	away      atomic.Bool // do not reconnect
	bound     atomic.Pointer[wire.Msg]

	out     sync.Mutex
	witness *witness
	tenant  uint64
}

// witness is a file shared by all fake clients of a test: whose work is in
// flight on the one GPU. It counts what must never be.
type witness struct {
	owner      atomic.Uint64 // tenant<<32 | operations in flight
	violations atomic.Uint64
	done       atomic.Uint64
}

func openWitness(path string) (*witness, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if err := f.Truncate(4096); err != nil {
		return nil, err
	}
	mem, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	return (*witness)(unsafe.Pointer(&mem[0])), nil
}

func (w *witness) begin(tenant uint64) {
	for {
		o := w.owner.Load()
		n := o & 0xffffffff
		if n > 0 && o>>32 != tenant {
			w.violations.Add(1)
			return
		}
		if w.owner.CompareAndSwap(o, tenant<<32|(n+1)) {
			return
		}
	}
}

func (w *witness) end() { w.owner.Add(^uint64(0)); w.done.Add(1) }

func (f *fake) say(format string, args ...any) {
	f.out.Lock()
	defer f.out.Unlock()
	fmt.Printf(format+"\n", args...)
}

func fakeMain() {
	f := &fake{sock: -1, pageFD: -1, welcomed: make(chan wire.Msg, 1), answers: make(chan wire.Msg, 16)}
	f.say("ready")
	in := bufio.NewScanner(os.Stdin)
	for in.Scan() {
		cmd, arg, _ := strings.Cut(in.Text(), " ")
		if err := f.do(cmd, arg); err != nil {
			f.say("%s: error: %v", cmd, err)
		}
	}
}

func (f *fake) do(cmd, arg string) error {
	switch cmd {
	case "start": // DIR
		f.dir = arg
		if err := f.connect(); err != nil {
			return err
		}
		go f.monitor()
		f.say("start: %d", (<-f.welcomed).A[0])
	case "bind":
		if err := f.send(&wire.Msg{Type: wire.Bind}, -1); err != nil {
			return err
		}
		go func() {
			m := <-f.answers
			if m.Type == wire.Refused {
				f.say("bind: refused %d %s", m.Code, m.TextString())
				return
			}
			var s []string
			for _, u := range m.UUID[:m.Count] {
				s = append(s, wire.FormatUUID(u))
			}
			f.say("bind: %s", strings.Join(s, " "))
		}()
	case "work": // one submission, when the gate is open
		go func() {
			f.submit()
			f.say("work: passed")
		}()
	case "done": // what is in flight is complete
		f.inFlight.Store(0)
		f.goIdle()
		f.say("done: %s", wire.StateName(state(f.page)))
	case "silent": // likewise, but nobody in the process notices
		f.inFlight.Store(0)
		f.say("silent: ok")
	case "word":
		w := f.page.Word().Load()
		f.say("word: %s wanted=%d waiting=%d", wire.StateName(wire.State(w)), f.page.Wanted().Load(), f.page.Waiting().Load())
	case "raw": // HEX sent as one packet
		b, err := hex.DecodeString(arg)
		if err != nil {
			return err
		}
		if err := unix.Send(f.sock, b, unix.MSG_NOSIGNAL); err != nil {
			return err
		}
		f.say("raw: sent")
	case "leave": // hang up and stay away
		f.away.Store(true)
		if err := unix.Shutdown(f.sock, unix.SHUT_RDWR); err != nil {
			return err
		}
		f.say("leave: ok")
	case "poke": // WORD written into the page
		w, err := strconv.ParseUint(arg, 0, 64)
		if err != nil {
			return err
		}
		f.page.Word().Store(w)
		f.say("poke: ok")
	case "lie": // numbers that make no sense
		f.page.CompletedNS().Store(1 << 63)
		f.page.IdleNS().Store(1<<64 - 1)
		f.say("lie: ok")
	case "gap": // NS of idle time come to an end
		ns, err := strconv.ParseUint(arg, 10, 64)
		if err != nil {
			return err
		}
		f.page.IdleNS().Add(ns)
		f.say("gap: ok")
	case "burst": // TENANT N WITNESS: N times work and a pause
		p := strings.Fields(arg)
		tenant, _ := strconv.ParseUint(p[0], 10, 32)
		n, _ := strconv.Atoi(p[1])
		w, err := openWitness(p[2])
		if err != nil {
			return err
		}
		f.witness, f.tenant = w, tenant
		go func() {
			for i := range n {
				f.submit()
				spin(time.Duration(20+i%7*30) * time.Microsecond)
				f.complete()
				if i%3 == 0 {
					f.goIdle() // a synchronising call
				}
				spin(time.Duration(i%5*20) * time.Microsecond)
			}
			f.goIdle()
			f.say("burst: finished")
		}()
	case "stats": // UNHOOKED UNKNOWN
		var a [4]uint64
		if _, err := fmt.Sscan(arg, &a[0], &a[1]); err != nil {
			return err
		}
		return f.send(&wire.Msg{Type: wire.Stats, A: a}, -1)
	case "memory": // INDEX NEED FLAGS: asks for credit
		m := wire.Msg{Type: wire.Memory}
		if _, err := fmt.Sscan(arg, &m.A[0], &m.A[1], &m.A[2]); err != nil {
			return err
		}
		m.A[3] = 7
		return f.send(&m, -1)
	case "allocate": // INDEX BYTES of its credit; vgpud is not asked
		var i, n uint64
		if _, err := fmt.Sscan(arg, &i, &n); err != nil {
			return err
		}
		credit := &f.page.Memory()[i].Credit
		for have := credit.Load(); ; have = credit.Load() {
			if have < n {
				return fmt.Errorf("its credit is %d", have)
			}
			if credit.CompareAndSwap(have, have-n) {
				break
			}
		}
		f.say("allocate: ok")
	case "free": // INDEX BYTES
		var i, n uint64
		if _, err := fmt.Sscan(arg, &i, &n); err != nil {
			return err
		}
		f.page.Memory()[i].Credit.Add(n)
		f.say("free: ok")
	case "asks": // whether it must ask before it allocates
		f.say("asks: %v", f.page.Over().Load()&1 != 0)
	case "ledger": // INDEX
		i, err := strconv.Atoi(arg)
		if err != nil {
			return err
		}
		k := &f.page.Memory()[i]
		f.say("ledger: %d %d", k.Leased.Load(), k.Credit.Load())
	case "scribble": // INDEX LEASED CREDIT written into the page
		var i, leased, credit uint64
		if _, err := fmt.Sscan(arg, &i, &leased, &credit); err != nil {
			return err
		}
		f.page.Memory()[i].Leased.Store(leased)
		f.page.Memory()[i].Credit.Store(credit)
		f.say("scribble: ok")
	case "page": // what vgpud wrote
		f.say("page: queue=%d drain=%d", f.page.QueueUS().Load(), f.page.DrainUS().Load())
	case "expected": // until when, likewise
		f.say("expected: %d", f.page.ExpectedNS().Load())
	case "observe": // DIR BIND: another connection, as NVML makes it
		dir, bind, _ := strings.Cut(arg, " ")
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		if err := connectIn(fd, dir); err != nil {
			return err
		}
		f.observing = append(f.observing, fd)
		go f.observe(fd, len(f.observing)-1)
		return askIdentity(fd, bind == "1")
	case "identity": // NUMBER BIND: asks again
		var n, bind int
		if _, err := fmt.Sscan(arg, &n, &bind); err != nil {
			return err
		}
		return askIdentity(f.observing[n], bind == 1)
	case "usage": // NUMBER GPU
		number, gpu, _ := strings.Cut(arg, " ")
		n, err := strconv.Atoi(number)
		if err != nil {
			return err
		}
		m := wire.Msg{Type: wire.Usage, Count: 1}
		if m.UUID[0], err = wire.ParseUUID(gpu); err != nil {
			return err
		}
		_, err = unix.SendmsgN(f.observing[n], packet(m), nil, nil, unix.MSG_NOSIGNAL)
		return err
	case "unobserve": // NUMBER
		n, err := strconv.Atoi(arg)
		if err != nil {
			return err
		}
		if err := unix.Shutdown(f.observing[n], unix.SHUT_RDWR); err != nil {
			return err
		}
		f.say("unobserve: ok")
	case "witness": // PATH of a FIFO, open until what the process has open is closed
		_, err := unix.Open(arg, unix.O_WRONLY|unix.O_CLOEXEC, 0)
		if err != nil {
			return err
		}
		f.say("witness: ok")
	case "heavy": // BYTES in a file, so that it takes a while to close
		n, err := strconv.ParseInt(arg, 0, 64)
		if err != nil {
			return err
		}
		fd, err := unix.MemfdCreate("heavy", unix.MFD_CLOEXEC)
		if err != nil {
			return err
		}
		if err := unix.Fallocate(fd, 0, 0, n); err != nil {
			return err
		}
		f.say("heavy: ok")
	case "linger": // PORT: a socket that can not be closed before all is read
		port, err := strconv.Atoi(arg)
		if err != nil {
			return err
		}
		if _, err := lingering(port); err != nil {
			return err
		}
		f.say("linger: ok")
	case "exec": // [UID]: the process becomes another program, with the same pid
		if arg != "" {
			uid, err := strconv.Atoi(arg)
			if err == nil {
				err = become(uid)
			}
			if err != nil {
				return err
			}
		}
		return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
	default:
		return errors.New("unknown command")
	}
	return nil
}

func askIdentity(fd int, bind bool) error {
	m := wire.Msg{Type: wire.Identity}
	if bind {
		m.A[0] = 1
	}
	_, err := unix.SendmsgN(fd, packet(m), nil, nil, unix.MSG_NOSIGNAL)
	return err
}

// observe says what an observer is told.
func (f *fake) observe(fd, n int) {
	for {
		m, _, err := recvMsg(fd)
		if err != nil {
			f.say("observed %d: %v", n, errHungUp)
			return
		}
		switch m.Type {
		case wire.IdentityIs:
			var s []string
			for _, u := range m.UUID[:m.Count] {
				s = append(s, wire.FormatUUID(u))
			}
			f.say("observed %d: identity %d %s", n, m.A[0], strings.Join(s, " "))
		case wire.UsageIs:
			f.say("observed %d: usage code=%d limit=%d used=%d others=%d late=%d processes=%d", n, m.Code, m.A[0], m.A[1], m.Others, m.A[2], m.A[3])
		case wire.Processes:
			var s []string
			for _, p := range m.Processes()[:m.Count] {
				s = append(s, fmt.Sprintf("%d:%d", p.PID, p.Bytes))
			}
			f.say("observed %d: processes last=%d %s", n, m.A[0], strings.Join(s, " "))
		case wire.Wait:
			f.say("observed %d: wait %s", n, m.TextString())
		case wire.Refused:
			f.say("observed %d: refused %d %s", n, m.Code, m.TextString())
		}
	}
}

// lingering is a TCP connection to a local port with data that nobody reads. The
// last close of it waits.
func lingering(port int) (int, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1, Linger: 3600}); err != nil {
		return -1, err
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_SNDBUF, 1<<20); err != nil {
		return -1, err
	}
	if err := unix.Connect(fd, &unix.SockaddrInet4{Port: port, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return -1, err
	}
	for {
		_, err := unix.SendmsgN(fd, make([]byte, 1<<16), nil, nil, unix.MSG_DONTWAIT)
		if errors.Is(err, unix.EAGAIN) {
			return fd, nil
		}
		if err != nil {
			return -1, err
		}
	}
}

func spin(d time.Duration) {
	for start := time.Now(); time.Since(start) < d; {
	}
}

// become makes this thread, and what it executes, another user's. That one finds
// its files even where only root may look.
func become(uid int) error {
	const keep = unix.CAP_DAC_READ_SEARCH
	runtime.LockOSThread()
	if err := unix.Prctl(unix.PR_SET_KEEPCAPS, 1, 0, 0, 0); err != nil {
		return err
	}
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(uid), uintptr(uid), uintptr(uid)); errno != 0 {
		return errno
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	caps := [2]unix.CapUserData{{Effective: 1 << keep, Permitted: 1 << keep, Inheritable: 1 << keep}}
	if err := unix.Capset(&header, &caps[0]); err != nil {
		return err
	}
	return unix.Prctl(unix.PR_CAP_AMBIENT, unix.PR_CAP_AMBIENT_RAISE, keep, 0, 0)
}

func (f *fake) connect() error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	if err := connectIn(fd, f.dir); err != nil {
		unix.Close(fd)
		return err
	}
	// Above the numbers of other files, as the real one.
	high, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 700)
	unix.Close(fd)
	if err != nil {
		return err
	}
	fd = high
	// First the socket, then HELLO.
	if f.sock >= 0 {
		err = unix.Dup3(fd, f.sock, unix.O_CLOEXEC)
		unix.Close(fd)
		if err != nil {
			return err
		}
	} else {
		f.sock = fd
	}
	hello := wire.Msg{Type: wire.Hello, Protocol: wire.Protocol}
	if b := f.bound.Load(); b != nil {
		hello.Count, hello.UUID = b.Count, b.UUID
	}
	if err := f.send(&hello, f.pageFD); err != nil {
		return err
	}
	for {
		m, fd, err := recvMsg(f.sock)
		if err != nil {
			return err
		}
		switch m.Type {
		case wire.Refused:
			return fmt.Errorf("refused %d: %s", m.Code, m.TextString())
		case wire.Welcome:
			if f.page == nil {
				if f.page, err = wire.MapPage(fd); err != nil {
					return err
				}
				f.pageFD = fd
				f.welcomed <- m
			}
			return nil
		}
	}
}

// connectIn connects to the socket in dir, whose path may be too long for an
// address.
func connectIn(fd int, dir string) error {
	d, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(d)
	return unix.Connect(fd, &unix.SockaddrUnix{Name: filepath.Join("/proc/self/fd", strconv.Itoa(d), wire.Socket)})
}

var errHungUp = errors.New("hung up")

// receive starts again after a signal: the kernel does not where the socket has a
// time-out (signal(7)), and Go sends itself signals.
func receive(sock int, buf, oob []byte) (n, oobn int, err error) {
	for {
		n, oobn, _, _, err = unix.Recvmsg(sock, buf, oob, unix.MSG_CMSG_CLOEXEC)
		if !errors.Is(err, unix.EINTR) {
			return n, oobn, err
		}
	}
}

func recvMsg(sock int) (wire.Msg, int, error) {
	var buf [wire.MsgSize]byte
	var oob [64]byte
	n, oobn, err := receive(sock, buf[:], oob[:])
	if err == nil && n == 0 {
		err = errHungUp
	}
	if err != nil {
		return wire.Msg{}, -1, err
	}
	fd := -1
	for _, got := range descriptors(oob[:oobn]) {
		fd = got
	}
	m, err := wire.Parse(buf[:n])
	return m, fd, err
}

func (f *fake) send(m *wire.Msg, fd int) error {
	var buf [wire.MsgSize]byte
	var oob []byte
	if fd >= 0 {
		oob = unix.UnixRights(fd)
	}
	_, err := unix.SendmsgN(f.sock, m.Marshal(buf[:]), oob, nil, unix.MSG_NOSIGNAL)
	return err
}

// monitor is the library's own thread.
func (f *fake) monitor() {
	for {
		fds := []unix.PollFd{{Fd: int32(f.sock), Events: unix.POLLIN}}
		timeout := -1
		if s := state(f.page); s == wire.Draining || (s != wire.Closed && s != wire.Idle && f.page.Wanted().Load() != 0) {
			timeout = 1
		}
		if n, _ := unix.Poll(fds, timeout); n > 0 {
			m, _, err := recvMsg(f.sock)
			switch {
			case err != nil:
				if !f.reconnect() {
					return
				}
			case m.Type == wire.MemoryIs:
				f.say("memory: code=%d index=%d limit=%d used=%d others=%d number=%d %s", m.Code, m.A[0], m.A[1], m.A[2], m.Others, m.A[3], m.TextString())
			case m.Type == wire.Bound || m.Type == wire.Refused:
				if m.Type == wire.Bound {
					f.bound.Store(&m)
				}
				f.answers <- m
			}
		}
		w := f.page.Word().Load()
		switch wire.State(w) {
		case wire.Draining:
			if f.gate.Load() == 0 && f.inFlight.Load() == 0 {
				f.page.CompletedNS().Store(uint64(newClock().now()))
				if f.page.Word().CompareAndSwap(w, wire.MakeWord(wire.Closed, wire.Epoch(w))) {
					_ = f.send(&wire.Msg{Type: wire.Drained}, -1)
				}
			}
		case wire.Open:
			if f.page.Wanted().Load() != 0 && f.gate.Load() == 0 && f.page.Waiting().Load() == 0 && f.inFlight.Load() == 0 {
				f.goIdle()
			}
		}
	}
}

func (f *fake) reconnect() bool {
	for {
		if f.away.Load() {
			return false
		}
		if f.connect() == nil {
			f.say("reconnected")
			return true
		}
		time.Sleep(5 * time.Millisecond) // until vgpud is back; there is nothing to wait on
	}
}

// submit passes the gate, records one operation in flight, and leaves.
func (f *fake) submit() {
	counted := false
	for {
		f.gate.Add(1)
		w := f.page.Word().Load()
		switch wire.State(w) {
		case wire.Open:
			f.begin(counted)
			return
		case wire.Idle:
			if f.page.Word().CompareAndSwap(w, wire.MakeWord(wire.Open, wire.Epoch(w))) {
				f.begin(counted)
				return
			}
			f.gate.Add(-1)
			continue
		case wire.Closing:
			f.gate.Add(-1)
			continue
		}
		f.gate.Add(-1)
		if !counted {
			counted = true
			if f.page.Waiting().Add(1) == 1 {
				_ = f.send(&wire.Msg{Type: wire.Pending}, -1)
			}
		}
		futexWait(f.page, w)
	}
}

func (f *fake) begin(counted bool) {
	if f.witness != nil {
		f.witness.begin(f.tenant)
	}
	f.inFlight.Add(1)
	f.page.Submitted().Add(1)
	if counted {
		f.page.Waiting().Add(^uint32(0))
	}
	f.gate.Add(-1)
}

// complete ends one operation, as the device does.
func (f *fake) complete() {
	if f.witness != nil {
		f.witness.end()
	}
	f.inFlight.Add(-1)
}

func (f *fake) goIdle() {
	w := f.page.Word().Load()
	if wire.State(w) != wire.Open {
		return
	}
	closing := wire.MakeWord(wire.Closing, wire.Epoch(w))
	if !f.page.Word().CompareAndSwap(w, closing) {
		return
	}
	if f.gate.Load() != 0 || f.page.Waiting().Load() != 0 || f.inFlight.Load() != 0 {
		f.page.Word().CompareAndSwap(closing, wire.MakeWord(wire.Open, wire.Epoch(w)))
		return
	}
	f.page.CompletedNS().Store(uint64(newClock().now()))
	if f.page.Word().CompareAndSwap(closing, wire.MakeWord(wire.Idle, wire.Epoch(w))) && f.page.Wanted().Load() != 0 {
		_ = f.send(&wire.Msg{Type: wire.IdleMsg}, -1)
	}
}

func futexWait(p *wire.Page, seen uint64) {
	_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(p.Word())), 0, uintptr(uint32(seen)), 0, 0, 0)
}
