// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"time"

	v1 "github.com/vgpu-shim/vgpu/vgpu/api/v1"
)

// How often the logs and the containers are looked at, and vgpud is asked.
const (
	lookEvery = 50 * time.Millisecond
	askEvery  = time.Second
)

// settling is how old work must be to be judged: whatever vgpud had to say of
// it has been read by then.
const settling = 3 * time.Second

// watch looks at everything again and again until ctx ends.
func (s *soak) watch(ctx context.Context) {
	look, ask := time.NewTicker(lookEvery), time.NewTicker(askEvery)
	defer look.Stop()
	defer ask.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			s.look()
		case <-ask.C:
			s.ask(ctx)
			s.measure(ctx)
		}
	}
}

// look takes in what the daemons, the GPUs and the containers have said.
func (s *soak) look() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lookAtBoxes()
	if err := s.lookAtLogs(); err != nil {
		s.violate("logs", "%v", err)
	}
	s.lookAtDaemons()
}

func (s *soak) lookAtBoxes() {
	for _, b := range s.order {
		if b.silent {
			continue
		}
		b.silent = b.removed != 0
		for _, v := range b.listen(s.node.Containerd.Output(b.id)) {
			s.violate(v.topic, "%s", v.text)
		}
		if !b.running() {
			continue
		}
		switch ended := b.container.Ended(); {
		case ended && b.ends:
			b.end()
		case ended:
			s.violate("exits", "container %s ended, and nobody killed it; it said: %s", b.id, b.text)
			b.end()
		default:
			s.wait(b)
		}
	}
}

// wait finds processes that wait for too long.
func (s *soak) wait(b *box) {
	if b.stopped > 0 { // the GPU is not given to it again before that one has drained
		return
	}
	t := now()
	if len(b.procs) == 0 && t-b.launched > 2*patience {
		s.violate("progress", "nothing has started in %s, which was created at %v", b.id, s.at(b.launched))
		b.end()
	}
	for _, p := range b.procs {
		if p.exited || p.killed {
			continue
		}
		waits := t - max(p.since, b.resumed)
		if waits > s.totals.longestWait {
			s.totals.longestWait = waits
			s.totals.longestWaitOf = fmt.Sprintf("until %v, %s in %s, which asked for %s", s.at(t), p.program, b.id, b.profile)
		}
		if waits > patience {
			s.violate("progress", "process %d (%s) of %s has computed nothing since %v", p.pid, p.program, b.id, s.at(max(p.since, b.resumed)))
			b.end()
		}
	}
}

func (s *soak) lookAtLogs() error {
	lines, err := s.daemonLog.next()
	if err != nil {
		return err
	}
	for i := range lines {
		l := &lines[i]
		if t, ok := l.turn(); ok {
			s.judge.turns[l.Container] = append(s.judge.turns[l.Container], t)
			s.totals.turns++
		}
		if l.declares() {
			s.judge.declared[l.Container] = append(s.judge.declared[l.Container], overrun{span{l.after, l.before}, l.astray()})
			s.totals.overruns++
			s.note("vgpud says of %s: %s", l.Container, l.Msg)
		}
	}
	ops, err := s.gpuLog.next()
	if err != nil {
		return err
	}
	ops = append(s.strange, ops...)
	s.strange = nil
	for _, op := range ops {
		b := s.boxOf(op)
		switch {
		case b == nil && now()-op.Submit < settling: // it has not said yet who it is
			s.strange = append(s.strange, op)
			continue
		case b == nil:
			s.violate("turns", "somebody who is no container gave work to a GPU: %+v", *op)
			continue
		}
		s.totals.submissions++
		if last := s.totals.lastOn[op.GPU]; last != "" && last != b.id {
			s.totals.handovers++
		}
		s.totals.lastOn[op.GPU] = b.id
		s.judge.ops[op.GPU] = append(s.judge.ops[op.GPU], work{op, b.id})
	}
	// What was in flight may have ended: progress.
	for _, ops := range s.judge.ops {
		for _, w := range ops {
			if err := s.gpuLog.look(w.operation); err != nil {
				return err
			}
			if p := s.boxes[w.box].proc(int(w.PID)); p != nil && w.End > p.since {
				p.since = w.End
			}
		}
	}
	for id, b := range s.boxes {
		if b.asked != 0 {
			s.judge.asked[id] = b.asked
		}
	}
	return nil
}

// boxOf is the container that submitted an operation. The kernel uses the number
// of a mount namespace again, so it is the last that had it by then.
func (s *soak) boxOf(op *operation) *box {
	for i := len(s.order) - 1; i >= 0; i-- {
		if b := s.order[i]; b.tenant == op.Tenant && b.launched <= op.Submit {
			return b
		}
	}
	return nil
}

// lookAtDaemons finds those that ended by themselves.
func (s *soak) lookAtDaemons() {
	for _, d := range []*daemon{&s.vgpud, &s.containerd} {
		if d.away() {
			continue
		}
		select {
		case <-d.process.Done():
			s.violate(d.name, "it ended by itself")
			d.outages = append(d.outages, span{now(), never})
		default:
		}
	}
}

// ask compares what vgpud lists with the containers that there are.
func (s *soak) ask(ctx context.Context) {
	s.asking.Lock() // answers in their order
	defer s.asking.Unlock()
	s.mu.Lock()
	began := now()
	up := !s.vgpud.awaySince(began)
	before := map[string]bool{}
	for _, b := range s.order {
		before[b.id] = b.running()
	}
	s.mu.Unlock()
	if !up {
		return
	}
	limited, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	list, err := s.node.Daemon.VGPUs(limited)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.vgpud.awaySince(began) || ctx.Err() != nil {
		return
	}
	if err != nil {
		s.violate("vgpud", "it does not answer: %v", err)
		return
	}
	listed := map[string]bool{}
	for _, v := range list {
		id := v.GetContainer().GetId()
		listed[id] = true
		b := s.boxes[id]
		if b == nil {
			s.violate("leaks", "vgpud has a vGPU of %q, which nobody made", id)
			continue
		}
		if b.removed != 0 && now()-b.removed > patience {
			s.violate("leaks", "vgpud still has the vGPU of %s, which was removed at %v", id, s.at(b.removed))
			continue
		}
		s.account(b, v)
	}
	for _, b := range s.order {
		if before[b.id] && b.running() && !listed[b.id] {
			s.violate("leaks", "vgpud does not list %s, which lives", b.id)
		}
	}
}

// account adds what a container has used since it was seen last.
func (s *soak) account(b *box, v *v1.VGPU) {
	u := usage{v.GetUsage().GetTurns(), v.GetUsage().GetDrains(), v.GetUsage().GetHeld().AsDuration()}
	last := b.lastUsage
	b.lastUsage = u
	if u.turns < last.turns || u.drains < last.drains || u.held < last.held {
		s.violate("accounts", "%s had %+v, and now has %+v", b.id, last, u)
		last = usage{}
	}
	s.totals.drains += u.drains - last.drains
}
