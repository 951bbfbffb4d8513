// SPDX-License-Identifier: Apache-2.0

package node

import (
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// witnessPipe is a FIFO that a process keeps open for as long as it has files.
func witnessPipe(t *testing.T, c *clientProcess) (closed func() bool) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "witness")
	if err := unix.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	c.ask("witness "+path, "witness: ok")
	return func() bool {
		fds := []unix.PollFd{{Fd: int32(fd)}}
		if _, err := unix.Poll(fds, 0); err != nil {
			t.Fatal(err)
		}
		return fds[0].Revents&unix.POLLHUP != 0
	}
}

// A process that is killed loses its memory and its connection first, and the
// driver's files, with its work on the GPU, some time later.
func TestAKilledHolderHoldsUntilItsFilesAreClosed(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	n.create("b")
	a, b := n.process("a"), n.client("b")
	closed := witnessPipe(t, a)
	a.ask("heavy "+strconv.Itoa(512<<20), "heavy: ok")
	a.ask("start "+n.created["a"], "start: ")
	a.ask("bind", "bind: ")
	a.ask("work", "work: passed")
	b.tell("work")
	n.untilState("b", "PENDING")
	a.signal(syscall.SIGKILL)
	b.expect("work: passed")
	if !closed() {
		t.Error("b passed while the killed process had files open")
	}
}

// Likewise one that becomes another program: exec closes its files after its
// connection.
func TestAnExecHoldsUntilItsFilesAreClosed(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	n.create("b")
	a, b := n.process("a"), n.client("b")
	port, release := unread(t)
	closed := witnessPipe(t, a)
	a.ask("linger "+strconv.Itoa(port), "linger: ok")
	a.ask("start "+n.created["a"], "start: ")
	a.ask("bind", "bind: ")
	a.ask("work", "work: passed")
	b.tell("work")
	n.untilState("b", "PENDING")
	a.tell("exec")
	passed := false
	n.until("vgpud sees the other program", func() bool {
		seen := false
		if err := n.daemon.call(func(l *loop) {
			for _, c := range l.pages {
				seen = seen || c.execed != 0
			}
		}); err != nil {
			t.Fatal(err)
		}
		passed = b.passed()
		return seen || passed
	})
	// In which order exec closes is the kernel's; the socket that lingers is open.
	if passed || n.vgpu("a").GetState() == "UNBOUND" {
		t.Fatal("a was released while its files are open")
	}
	release()
	a.expect("ready")
	b.expect("work: passed")
	if !closed() {
		t.Error("b passed while the old program had files open")
	}
}

// Whoever reads /proc/<pid>/maps waits for locks of the process.
func TestAProcessThatCanNotBeLookedAtHoldsUpNobody(t *testing.T) {
	n := newNode(t, settings{})
	n.create("a")
	n.create("b")
	a, b := n.client("a"), n.client("b")
	var looks, most atomic.Int32
	stuck := make(chan struct{})
	t.Cleanup(func() { close(stuck) })
	if err := n.daemon.call(func(l *loop) {
		l.fateOf = func(process, uint64) fate {
			most.Store(max(most.Load(), looks.Add(1)))
			<-stuck
			looks.Add(-1)
			return same
		}
	}); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		a.tell("raw 00") // is hung up on
		a.expect("reconnected")
	}
	a.ask("leave", "leave: ok")
	a.ask("exec", "ready")
	a.ask("start "+n.created["a"], "start: ") // while its old program is not known to be gone
	b.ask("work", "work: passed")
	if most.Load() != 1 {
		t.Errorf("%d looks at once", most.Load())
	}
}
