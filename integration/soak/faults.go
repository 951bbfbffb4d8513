// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// commit does what was planned. It returns false if there was nobody to do it to.
func (s *soak) commit(f planned) bool {
	switch f.kind {
	case killClient, stopClient:
		return s.signalClient(f)
	case killContainer, deleteContainer, killShim:
		return s.endContainer(f)
	case killVGPUD, createWhileAway:
		return s.vgpudAway(f)
	case killContainerd:
		return s.restartContainerd()
	case execInto, rubbish:
		return s.exec(f)
	case update:
		return s.update(f)
	}
	panic("a fault of unknown kind: " + f.kind)
}

// beside runs f beside the faults that follow.
func (s *soak) beside(f func()) {
	s.work.Add(1)
	go func() {
		defer s.work.Done()
		f()
	}()
}

// did counts a fault, and adds it to the list. It is called with mu held.
func (s *soak) did(k kind, format string, args ...any) {
	s.count[k]++
	s.note("%s: %s", k, fmt.Sprintf(format, args...))
}

// pause waits, but not beyond the end of the run.
func (s *soak) pause(d time.Duration) {
	select {
	case <-time.After(d):
	case <-s.ctx.Done():
	}
}

func (s *soak) signalClient(f planned) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.choose(f.pick, func(b *box) bool { return len(b.living()) > 0 })
	if b == nil {
		return false
	}
	living := b.living()
	p := living[f.detail%uint64(len(living))]
	fd, err := b.container.Open(p.pid)
	if err != nil {
		return false // it ended just now
	}
	signal := unix.SIGKILL
	if f.kind == stopClient {
		signal = unix.SIGSTOP
	}
	if err := unix.PidfdSendSignal(fd, signal, nil, 0); err != nil {
		unix.Close(fd)
		return false
	}
	if f.kind == killClient {
		unix.Close(fd)
		p.killed = true
		s.did(f.kind, "process %d (%s) of %s", p.pid, p.program, b.id)
		return true
	}
	p.stopped = true
	b.stopped++
	s.did(f.kind, "process %d (%s) of %s, for %v", p.pid, p.program, b.id, f.lasts.Round(time.Millisecond))
	s.beside(func() {
		s.pause(f.lasts)
		// It may have been killed with its container.
		_ = unix.PidfdSendSignal(fd, unix.SIGCONT, nil, 0)
		unix.Close(fd)
		s.mu.Lock()
		defer s.mu.Unlock()
		p.stopped = false
		b.stopped--
		b.resumed = now()
		s.note("process %d of %s goes on", p.pid, b.id)
	})
	return true
}

func (s *soak) endContainer(f planned) bool {
	s.mu.Lock()
	b := s.choose(f.pick, func(*box) bool { return true })
	if b == nil {
		s.mu.Unlock()
		return false
	}
	pid := 0
	if f.kind == killShim {
		var err error
		if pid, err = b.container.ShimPID(); err != nil {
			s.violate("shims", "%v, though its container lives", err)
			s.mu.Unlock()
			return false
		}
	}
	// From now on it may end, but it is removed only after this.
	b.asked = now()
	s.did(f.kind, "%s", b.id)
	s.mu.Unlock()

	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	var err error
	switch f.kind {
	case killShim:
		err = syscall.Kill(pid, syscall.SIGKILL)
	case killContainer:
		err = b.container.Kill(ctx, syscall.SIGKILL)
	case deleteContainer:
		_, err = s.node.Containerd.CtrCommand(ctx, "task", "delete", "--force", b.id).CombinedOutput()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	close(b.over)
	if err != nil && s.ctx.Err() == nil {
		s.violate("containers", "%s of %s failed: %v", f.kind, b.id, err)
	}
	return true
}

// vgpudAway kills vgpud and has it started again a while later. Meanwhile a
// container is created, if that is planned.
func (s *soak) vgpudAway(f planned) bool {
	s.mu.Lock()
	if !s.vgpud.mayLeave() {
		s.mu.Unlock()
		return false
	}
	s.vgpud.leaves()
	process := s.vgpud.process
	s.did(f.kind, "for %v", f.lasts.Round(time.Millisecond))
	id := fmt.Sprintf("away-%d", s.count[f.kind])
	s.mu.Unlock()

	if err := process.Kill(); err != nil {
		s.wrong("vgpud", "%v", err)
	}
	if f.kind == createWhileAway {
		b := s.newBox(id, profile{})
		b.ends = true
		s.beside(func() {
			s.run(b, harness.Spec{ID: id, Rootfs: s.rootfs, Args: []string{"sh", "-c", once}})
		})
	}
	s.beside(func() {
		s.pause(f.lasts)
		err := s.node.Daemon.Start(context.WithoutCancel(s.ctx))
		s.mu.Lock()
		defer s.mu.Unlock()
		s.vgpud.back(s.node.Daemon.Process())
		s.totals.vgpudRestarts++
		if err != nil {
			s.violate("vgpud", "%v", err)
		}
		s.note("vgpud is back")
	})
	return true
}

// restartContainerd kills containerd and starts it again at once.
func (s *soak) restartContainerd() bool {
	s.mu.Lock()
	s.containerd.leaves()
	process := s.containerd.process
	s.did(killContainerd, "and start it again")
	s.mu.Unlock()

	err := process.Kill()
	if err == nil {
		err = s.node.Containerd.Start(context.WithoutCancel(s.ctx))
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.containerd.back(s.node.Containerd.Process())
	s.totals.containerdRestarts++
	if err != nil {
		s.violate("containerd", "%v", err)
	}
	s.note("containerd is back")
	return true
}

// exec runs a program in a container beside what runs there. It must end well,
// unless its container or containerd did not live so long.
func (s *soak) exec(f planned) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.choose(f.pick, func(*box) bool { return true })
	if b == nil {
		return false
	}
	args := []string{"/vgpu/vecadd"}
	switch {
	case f.kind == rubbish:
		args = []string{"/vgpu/rubbish"}
	case f.detail%2 == 0:
		args = []string{"/vgpu/hog", "--ms", "500", "--kernel-us", "6000"}
	}
	began := now()
	s.did(f.kind, "%s in %s", strings.Join(args, " "), b.id)
	s.beside(func() {
		ctx, cancel := context.WithTimeout(s.ctx, 2*patience)
		defer cancel()
		_, err := b.container.Exec(ctx, args...)
		s.mu.Lock()
		defer s.mu.Unlock()
		switch {
		case err == nil, b.asked != 0, s.ctx.Err() != nil, s.containerd.awaySince(began):
		case f.kind == rubbish && s.vgpud.awaySince(began): // it has nobody to speak to
		default:
			s.violate("exits", "exec in %s, which lives: %v", b.id, err)
		}
	})
	return true
}

// update changes what a container asks for. It must be allowed, if vgpud is there.
func (s *soak) update(f planned) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	b := s.choose(f.pick, func(*box) bool { return true })
	if b == nil {
		return false
	}
	changes := []string{"weight=25", "weight=300", "priority=low", "priority=high", "priority=", "quantum=1ms", "quantum=30ms", "quantum=", "max-share=", "max-share=25%"}
	change := changes[f.detail%uint64(len(changes))]
	began := now()
	s.did(update, "%s of %s", change, b.id)
	s.beside(func() {
		ctx, cancel := context.WithTimeout(s.ctx, patience)
		defer cancel()
		_, err := s.node.Daemon.CLI(ctx, "set", b.id, change)
		s.mu.Lock()
		defer s.mu.Unlock()
		if err == nil || b.asked != 0 || s.ctx.Err() != nil || s.vgpud.awaySince(began) {
			return
		}
		s.violate("updates", "vgpu set %s %s failed though vgpud ran: %s", b.id, change, stderr(err))
	})
	return true
}

// stderr is what a command that failed has said.
func stderr(err error) string {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return strings.TrimSpace(string(exit.Stderr))
	}
	return err.Error()
}
