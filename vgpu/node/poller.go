// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"fmt"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// poller is an epoll instance with a handler per descriptor, one timer and a
// queue of posted functions. Its methods are for the loop's goroutine, but for
// post and quit.
type poller struct {
	ep, wake, timer int
	handlers        map[uint64]func()
	last            uint64
	timerAt         time.Duration // what the kernel's timer is set to; 0: off
	fired           func()
	// idle is called before each wait. It does what is due, and returns how long
	// the wait may be; 0: as long as it takes.
	idle func() time.Duration
	// between is called after the handlers of a round, and in it before the timer's
	// and what was posted: what may be put off until then came before those.
	between func()

	coarse bool // the kernel's waits end by the millisecond

	mu      sync.Mutex
	posted  []func()
	stopped bool
}

func newPoller() (_ *poller, retErr error) {
	p := &poller{ep: -1, wake: -1, timer: -1, handlers: make(map[uint64]func())}
	defer func() {
		if retErr != nil {
			p.close()
		}
	}()
	var err error
	if p.ep, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, fmt.Errorf("failed to create an epoll instance: %w", err)
	}
	if p.wake, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("failed to create an eventfd: %w", err)
	}
	if p.timer, err = unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_CLOEXEC|unix.TFD_NONBLOCK); err != nil {
		return nil, fmt.Errorf("failed to create a timer: %w", err)
	}
	if _, err := p.add(p.wake, p.runPosted); err != nil {
		return nil, err
	}
	if _, err := p.add(p.timer, p.timerFired); err != nil {
		return nil, err
	}
	return p, nil
}

// add calls fn whenever fd is readable or hung up. The token names this
// registration: a number of a descriptor can be in use again before an old
// event about it is handled, a token never is.
func (p *poller) add(fd int, fn func()) (uint64, error) {
	p.last++
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(uint32(p.last)), Pad: int32(p.last >> 32)}
	if err := unix.EpollCtl(p.ep, unix.EPOLL_CTL_ADD, fd, &ev); err != nil {
		return 0, fmt.Errorf("failed to watch a descriptor: %w", err)
	}
	p.handlers[p.last] = fn
	return p.last, nil
}

// remove ends what add began. The caller closes fd.
func (p *poller) remove(fd int, token uint64) {
	if _, ok := p.handlers[token]; !ok {
		return
	}
	delete(p.handlers, token)
	_ = unix.EpollCtl(p.ep, unix.EPOLL_CTL_DEL, fd, nil)
}

// post runs fn in the loop. Any goroutine may call it; false means that the
// loop has ended and fn will not run.
func (p *poller) post(fn func()) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stopped {
		return false
	}
	p.posted = append(p.posted, fn)
	if len(p.posted) == 1 {
		_, _ = unix.Write(p.wake, []byte{1, 0, 0, 0, 0, 0, 0, 0})
	}
	return true
}

// quit ends run, after what was posted before. Any goroutine may call it.
func (p *poller) quit() {
	p.post(func() {
		p.mu.Lock()
		p.stopped = true
		p.mu.Unlock()
	})
}

func (p *poller) runPosted() {
	p.putOff()
	var buf [8]byte
	_, _ = unix.Read(p.wake, buf[:])
	p.mu.Lock()
	fns := p.posted
	p.posted = nil
	p.mu.Unlock()
	for _, fn := range fns {
		fn()
	}
}

// arm makes the timer fire at the given time, or not at all for 0. A timer that
// stands earlier is left alone: it fires, finds nothing due and is set anew,
// which costs less than a system call for each quantum.
func (p *poller) arm(at, now time.Duration) {
	if at == 0 || (p.timerAt != 0 && p.timerAt <= at) {
		return
	}
	p.timerAt = at
	spec := unix.ItimerSpec{Value: unix.NsecToTimespec(int64(max(at, now, 1)))}
	_ = unix.TimerfdSettime(p.timer, unix.TFD_TIMER_ABSTIME, &spec, nil)
}

// putOff does what was put off.
func (p *poller) putOff() {
	if p.between != nil {
		p.between()
	}
}

func (p *poller) timerFired() {
	p.putOff()
	var buf [8]byte
	_, _ = unix.Read(p.timer, buf[:])
	p.timerAt = 0
	if p.fired != nil {
		p.fired()
	}
}

// run handles events until quit.
func (p *poller) run() error {
	events := make([]unix.EpollEvent, 64)
	for !p.stopped { // written by this goroutine, and not before it ends by close
		n, err := p.wait(events)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return fmt.Errorf("failed to wait for events: %w", err)
		}
		p.handle(events[:n])
	}
	return nil
}

// handle handles the events of one round.
func (p *poller) handle(events []unix.EpollEvent) {
	for _, ev := range events {
		token := uint64(uint32(ev.Fd)) | uint64(uint32(ev.Pad))<<32
		if fn := p.handlers[token]; fn != nil {
			fn()
		}
	}
	p.putOff()
}

func (p *poller) wait(events []unix.EpollEvent) (int, error) {
	most := time.Duration(0)
	if p.idle != nil {
		most = p.idle()
	}
	if most <= 0 {
		return unix.EpollWait(p.ep, events, -1)
	}
	if !p.coarse {
		ts := unix.NsecToTimespec(int64(most))
		//nolint:gosec // G103: golang.org/x/sys has no function for this system call
		n, _, errno := unix.Syscall6(unix.SYS_EPOLL_PWAIT2, uintptr(p.ep), uintptr(unsafe.Pointer(&events[0])), uintptr(len(events)), uintptr(unsafe.Pointer(&ts)), 0, 0)
		switch errno {
		case 0:
			return int(n), nil
		case unix.ENOSYS, unix.EPERM: // Linux before 5.11; a filter of system calls that does not know it
			p.coarse = true
		default:
			return 0, errno
		}
	}
	return unix.EpollWait(p.ep, events, int((most+time.Millisecond-1)/time.Millisecond))
}

func (p *poller) close() {
	p.mu.Lock()
	p.stopped = true
	p.mu.Unlock()
	for _, fd := range []int{p.ep, p.wake, p.timer} {
		if fd >= 0 {
			unix.Close(fd)
		}
	}
}
