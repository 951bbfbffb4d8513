// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/sirupsen/logrus"
	"golang.org/x/sys/unix"
)

// fate is what became of a process that hung up.
type fate uint8

const (
	// same: it has its page, or is dying (its pidfd will say when it is dead),
	// or nothing can be found out.
	same fate = iota
	// other: it runs another program (exec), but has not left the exec yet. What
	// the old program had open, and with it the old program's work on the GPU, is
	// closed on that way, after its connection to vgpud.
	other
	// gone: it is dead, or another program runs and nothing of the old one is
	// left.
	gone
)

// fateOf finds out what became of p, whose page has an inode. It may wait for
// the process and is never called in the loop.
func fateOf(p process, inode uint64) fate {
	if p.gone() {
		return gone
	}
	if has, known := mapped(p.PID, inode); has || !known {
		return same
	}
	past := pastExec(p.PID)
	// A process that dies loses its memory first and its descriptors later. What
	// was seen above counts only if it still had memory after that.
	if !hasMemory(p.PID) {
		return same
	}
	if !past {
		return other
	}
	return gone
}

// noProcess says whether an error of a file in /proc/<pid> means that there is
// no such process.
func noProcess(err error) bool {
	return errors.Is(err, os.ErrNotExist) || errors.Is(err, unix.ESRCH)
}

// mapped says whether a process has the page with an inode mapped. It is not
// known of a process without any memory: that one is dying.
func mapped(pid int, inode uint64) (has, known bool) {
	maps, err := os.Open(procFile(pid, "maps"))
	if err != nil {
		return false, false
	}
	defer maps.Close()
	number := strconv.FormatUint(inode, 10)
	s := bufio.NewScanner(maps)
	for s.Scan() {
		known = true
		// address perms offset dev inode path, see proc_pid_maps(5)
		if f := strings.Fields(s.Text()); len(f) >= 6 && f[4] == number && strings.HasPrefix(f[5], "/memfd:") {
			return true, true
		}
	}
	return false, known && s.Err() == nil
}

func hasMemory(pid int) bool {
	maps, err := os.Open(procFile(pid, "maps"))
	if err != nil {
		return false
	}
	defer maps.Close()
	var b [1]byte
	_, err = io.ReadFull(maps, b[:])
	return err == nil
}

// pastExec says whether a process sleeps in another system call than exec. Once
// it has left exec, all that exec closed is closed. A process that runs tells
// nothing.
func pastExec(pid int) bool {
	b, err := os.ReadFile(procFile(pid, "syscall")) // see proc_pid_syscall(5)
	if err != nil {
		return false
	}
	number, _, _ := bytes.Cut(b, []byte{' '})
	n, err := strconv.Atoi(string(number)) // not a number: it runs
	return err == nil && n >= 0 && n != unix.SYS_EXECVE && n != unix.SYS_EXECVEAT
}

func procFile(pid int, name string) string { return "/proc/" + strconv.Itoa(pid) + "/" + name }

// Between two looks at the processes that hung up.
const (
	lookMin = time.Millisecond
	lookMax = 5 * time.Second
)

// hungUp is a process to look at: a client without a connection, or one that is
// expected after a restart.
type hungUp struct {
	process
	inode uint64
	since *time.Duration // when it was first seen to run another program; 0: it was not
	gone  func()         // releases it, if it is still what it was
	fate  fate
}

func (l *loop) hungUp(v *vgpu) (all []*hungUp) {
	for _, c := range v.clients {
		if c.conn == nil {
			all = append(all, &hungUp{process: c.process, inode: c.inode, since: &c.execed, gone: func() {
				if l.pages[c.inode] == c && c.conn == nil {
					l.died(c)
				}
			}})
		}
	}
	for _, x := range v.expected {
		all = append(all, &hungUp{process: x.process, inode: x.Inode, since: &x.execed, gone: func() {
			if v.expects(x) {
				l.expectedDied(v, x)
			}
		}})
	}
	return all
}

// look finds out what became of the processes of v that hung up, now and again
// for as long as there are any. Deaths come by pidfd; this is for what has no
// other sign: a process that runs another program now (exec) has no work on the
// GPU any more, and nobody is left in it to drain.
func (l *loop) look(v *vgpu) {
	v.lookDelay = lookMin
	l.lookOnce(v)
}

func (l *loop) lookOnce(v *vgpu) {
	all := l.hungUp(v)
	if v.looking || len(all) == 0 {
		return
	}
	v.looking = true // one round at a time: a process that holds one up costs one thread
	fateOf := l.fateOf
	go func() {
		for _, h := range all {
			h.fate = fateOf(h.process, h.inode)
		}
		l.poller.post(func() { l.looked(v, all) })
	}()
}

func (l *loop) looked(v *vgpu, all []*hungUp) {
	v.looking = false
	now := l.now()
	for _, h := range all {
		switch h.fate {
		case same:
			*h.since = 0
		case other:
			// It may compute for ever without a system call that can be seen.
			// After the time for a drain it is given up like an overrun.
			if *h.since == 0 {
				*h.since = now
			} else if now-*h.since >= l.drain {
				l.once(v, logrus.WarnLevel, "a process runs another program; whether all of the old one is closed can not be seen; its turn is over", logrus.Fields{"pid": h.PID})
				h.gone()
			}
		case gone:
			h.gone()
		}
	}
	if len(l.hungUp(v)) > 0 {
		l.arm(&v.lookTimer, now+v.lookDelay)
		v.lookDelay = min(2*v.lookDelay, lookMax)
	}
}
