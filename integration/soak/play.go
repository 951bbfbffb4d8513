// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"

	"github.com/vgpu-shim/vgpu/integration/harness"
)

// play is a run from the first container to the last. What was violated is in
// s.violations then.
func (s *soak) play(containers int, length time.Duration) {
	watching, stopWatching := context.WithCancel(context.WithoutCancel(s.ctx))
	var watcher sync.WaitGroup
	watcher.Add(1)
	go func() {
		defer watcher.Done()
		s.watch(watching)
	}()

	var slots sync.WaitGroup
	for i := range containers {
		slots.Add(1)
		go func() {
			defer slots.Done()
			s.live(i)
		}()
	}
	s.commitFaults(length)
	// Everything that was away is back, everything that was stopped goes on.
	s.work.Wait()
	s.everyoneGoesOn()
	s.listedExactly()
	close(s.leaving)
	slots.Wait()
	stopWatching()
	watcher.Wait()
	if s.ctx.Err() != nil {
		return
	}
	s.nothingIsLeft()
	s.nothingIsHeld()
	s.lastJudgement()
}

// commitFaults commits faults for so long, and judges after each.
func (s *soak) commitFaults(length time.Duration) {
	s.wait60("the first containers run", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.totals.created == 0 {
			return errors.New("none runs yet")
		}
		return nil
	})
	p := newPlan(s.seed)
	end, said := now()+length, now()
	for now() < end && !s.failed() && s.ctx.Err() == nil {
		f := p.next()
		s.pause(f.after)
		if s.failed() || s.ctx.Err() != nil {
			return
		}
		s.commit(f)
		s.answers()
		s.judgeNow(now()-settling, false)
		if now()-said >= 30*time.Second {
			said = now()
			fmt.Printf("soak: %v, %d faults\n", s.at(said).Round(time.Second), s.total())
		}
	}
}

func (s *soak) judgeNow(horizon time.Duration, final bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.lookAtLogs(); err != nil {
		s.violate("logs", "%v", err)
	}
	for _, v := range s.judge.run(horizon, final) {
		s.violate(v.topic, "%s", v.text)
	}
	if s.gpuLog.lost > 0 {
		s.violate("logs", "%d records did not fit into the simulated GPUs' log", s.gpuLog.lost)
	}
}

// answers sees to it that vgpud answers, unless it is away.
func (s *soak) answers() {
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	s.ask(ctx)
}

// wait60 waits for what must come.
func (s *soak) wait60(what string, f func() error) {
	if s.failed() || s.ctx.Err() != nil {
		return
	}
	err := harness.Eventually(s.ctx, patience, func() error {
		if s.failed() {
			return nil // that is enough
		}
		return f()
	})
	if err != nil && s.ctx.Err() == nil {
		s.wrong("the end", "%s: %v", what, err)
	}
}

// everyoneGoesOn waits until each process has computed after the last fault.
func (s *soak) everyoneGoesOn() {
	last := now()
	s.wait60("everyone computes after the last fault", func() error {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, b := range s.order {
			if !b.running() || b.ends {
				continue
			}
			if len(b.procs) == 0 {
				return fmt.Errorf("%s has started nothing", b.id)
			}
			for _, p := range b.procs {
				// One that ended well has computed.
				if !p.exited && !p.killed && p.since < last {
					return fmt.Errorf("process %d (%s) of %s has not since %v", p.pid, p.program, b.id, s.at(p.since))
				}
			}
		}
		return nil
	})
}

// listedExactly waits until vgpud lists the containers that live and no others.
func (s *soak) listedExactly() {
	s.wait60("vgpud lists the containers that live", func() error {
		list, err := s.node.Daemon.VGPUs(s.ctx)
		if err != nil {
			return err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		listed := map[string]bool{}
		for _, v := range list {
			id := v.GetContainer().GetId()
			listed[id] = true
			if b := s.boxes[id]; b == nil || !b.running() {
				return fmt.Errorf("it lists %s", id)
			}
		}
		for _, b := range s.order {
			if b.running() && !listed[b.id] {
				return fmt.Errorf("it does not list %s", b.id)
			}
		}
		return nil
	})
}

// nothingIsLeft comes when all containers were removed.
func (s *soak) nothingIsLeft() {
	ctx, cancel := context.WithTimeout(s.ctx, 2*patience)
	defer cancel()
	if err := s.node.Containerd.RemoveAll(ctx); err != nil {
		s.wrong("the end", "%v", err)
	}
	s.endForgottenShims()
	if err := s.node.CheckLeaks(ctx); err != nil && s.ctx.Err() == nil {
		s.wrong("leaks", "%v", err)
	}
}

// endForgottenShims does what containerd 1.6 does not: a shim whose Create was
// under way when containerd was killed is taken for one that has a container by
// the next containerd, and lives on when that container was deleted. To kill it
// is what its issue 6860 says to do; then the rest is cleaned up. Newer ones do
// so themselves (pull request 6866).
func (s *soak) endForgottenShims() {
	if s.node.Containerd.Version != harness.Containerd16 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, b := range s.order {
		if !b.cutOff {
			continue
		}
		if pid, err := s.node.Containerd.ShimPID(b.id); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL) // the leaks that follow tell
			s.totals.forgottenShims++
			s.note("the shim of %s, which containerd has forgotten, was killed", b.id)
		}
	}
}

// lastJudgement judges all that is left, after the deaths of all processes were
// written into the simulated GPUs' log.
func (s *soak) lastJudgement() {
	overlap, err := s.node.Daemon.Overlap(s.ctx)
	if err != nil {
		s.wrong("logs", "%v", err)
		return
	}
	s.mu.Lock()
	s.lookAtBoxes()
	s.mu.Unlock()
	s.judgeNow(now(), true)
	s.mu.Lock()
	defer s.mu.Unlock()
	// What was not read was not judged.
	if read := s.totals.submissions; read != uint64(overlap.Submissions) {
		s.violate("logs", "%d of %d pieces of work were read, and %d are of nobody", read, overlap.Submissions, len(s.strange))
	}
}
