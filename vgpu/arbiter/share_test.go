// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// load is a container that always has work: it launches kernels of one length
// for as long as its gate is open, and stops at the end of the kernel that runs
// when it is revoked. One that is idle never comes to the gate.
type load struct {
	kernel time.Duration
	began  time.Duration // its turn
	ends   time.Duration // when what is in flight after a revoke is complete; 0: not revoked
	due    time.Duration // its deadline; 0: none
	said   string        // why it has no GPU
	before time.Duration // what it had held when the span began
}

// player plays loads against an engine in simulated time.
type player struct {
	e     *Engine
	now   time.Duration
	ids   []ID
	loads map[ID]*load
}

func newPlayer(e *Engine) *player { return &player{e: e, loads: make(map[ID]*load)} }

func (p *player) step(ev Event) {
	for _, a := range slices.Clone(p.e.Step(p.now, ev)) {
		l := p.loads[a.VGPU]
		if l == nil {
			continue
		}
		switch a.Kind {
		case Bound:
			l.said = ""
		case BindWaits, Unbindable:
			l.said = a.describe()
		case Grant:
			if l.ends != 0 || l.began == 0 {
				l.began, l.ends = p.now, 0
			}
		case Arm:
			l.due = a.At
		case Revoke:
			l.ends = l.began + (p.now-l.began+l.kernel-1)/l.kernel*l.kernel
			l.ends = max(l.ends, 1)
		}
	}
}

// add brings in a load, by the event Added.
func (p *player) add(ev Event, kernel time.Duration, idle bool) {
	p.ids = append(p.ids, ev.VGPU)
	p.loads[ev.VGPU] = &load{kernel: kernel}
	p.step(ev)
	p.step(Event{Kind: Bind, VGPU: ev.VGPU})
	if !idle {
		p.step(Event{Kind: Pending, VGPU: ev.VGPU})
	}
}

// play goes on for so long and returns the part of that time that each load
// held a GPU, by the engine's own accounts.
func (p *player) play(long time.Duration) map[ID]float64 {
	began := p.now
	for id, l := range p.loads {
		l.before = p.held(id)
	}
	for until := p.now + long; p.now < until; {
		next, who, drained := until, ID(""), false
		for _, id := range p.ids {
			if l := p.loads[id]; l.ends != 0 && l.ends < next {
				next, who, drained = l.ends, id, true
			} else if l.due != 0 && l.due < next {
				next, who, drained = l.due, id, false
			}
		}
		p.now = max(p.now, next)
		switch l := p.loads[who]; {
		case who == "":
		case drained:
			l.began, l.ends = 0, 0
			p.step(Event{Kind: Drained, VGPU: who, LastWork: p.now, Waiting: true})
		default:
			l.due = 0
			p.step(Event{Kind: Deadline, VGPU: who})
		}
	}
	got := make(map[ID]float64)
	for id, l := range p.loads {
		got[id] = float64(p.held(id)-l.before) / float64(p.now-began)
	}
	return got
}

func (p *player) held(id ID) time.Duration {
	s, _ := p.e.VGPU(id)
	if s.State == Holding || s.State == Draining {
		return s.Usage.Held + p.now - s.Since
	}
	return s.Usage.Held
}

// playLines is the command play of a scenario. Its lines are
//
//	NAME [KEY=VALUE ...] [kernel=DURATION] [idle]   a container that comes
//	EVENT ...                                       as in events
//	DURATION NAME=PERCENT ...                       so long; what each must have held then, to 1 %
func playLines(t *testing.T, d *datadriven.TestData, e *Engine) string {
	var out strings.Builder
	p := newPlayer(e)
	if !strings.Contains(d.Input, "gpu-up ") {
		p.step(Event{Kind: GPUUp, GPU: "g0"})
	}
	for line := range strings.Lines(d.Input) {
		fields := strings.Fields(line)
		if long, err := time.ParseDuration(fields[0]); err == nil {
			got := p.play(long)
			fmt.Fprintf(&out, "%v", long)
			for _, id := range p.ids {
				fmt.Fprintf(&out, " %s=%.1f", id, 100*got[id])
				if said := p.loads[id].said; said != "" {
					fmt.Fprintf(&out, " (%s)", said)
				}
			}
			out.WriteString("\n")
			for _, f := range fields[1:] {
				id, value, _ := strings.Cut(f, "=")
				var want float64
				if _, err := fmt.Sscan(value, &want); err != nil {
					d.Fatalf(t, "%s: %v", f, err)
				}
				if g := 100 * got[ID(id)]; math.Abs(g-want) > max(want/100, .01) {
					d.Fatalf(t, "%s: %s had %.3f %% of the time", strings.TrimSpace(line), id, g)
				}
			}
			continue
		}
		if _, ok := eventKinds[fields[0]]; ok {
			p.step(parseEvent(t, d, fields))
			continue
		}
		kernel, idle := time.Millisecond, false
		fields = slices.DeleteFunc(fields, func(f string) bool {
			value, ok := strings.CutPrefix(f, "kernel=")
			if ok {
				kernel = parseDuration(t, d, value)
			}
			idle = idle || f == "idle"
			return ok || f == "idle"
		})
		p.add(parseEvent(t, d, append([]string{"added"}, fields...)), kernel, idle)
	}
	return out.String()
}

// A turn that overran for hours: the product of its debt overflowed, and the
// debt was forgiven.
func TestCapRemembersADebtOfHours(t *testing.T) {
	e := New(Config{Window: time.Hour})
	e.Step(0, Event{Kind: GPUUp, GPU: "g"})
	e.Step(0, Event{Kind: Added, VGPU: "a", Request: request.Request{Count: 1, MaxShare: .000001}})
	e.Step(0, Event{Kind: Bind, VGPU: "a"})
	e.Step(0, Event{Kind: Pending, VGPU: "a"})
	now := 100 * time.Hour
	e.Step(time.Minute, Event{Kind: Deadline, VGPU: "a"})
	for _, a := range e.Step(now, Event{Kind: Drained, VGPU: "a", LastWork: now, Waiting: true}) {
		if a.Kind == Grant {
			t.Error("granted again at once, after 100 hours with a cap of a millionth")
		}
	}
}

// Likewise, what a brief one is ahead since it overran: it was let in as if it had had nothing.
func TestBriefOneThatOverranForHoursIsAhead(t *testing.T) {
	e := New(Config{})
	e.Step(0, Event{Kind: GPUUp, GPU: "g"})
	for id, weight := range map[ID]int{"h": 10000, "k": 1} {
		e.Step(0, Event{Kind: Added, VGPU: id, Request: request.Request{Count: 1, Weight: weight}})
		e.Step(0, Event{Kind: Bind, VGPU: id})
	}
	const ms = time.Millisecond
	var actions []Action
	for _, s := range []struct {
		at time.Duration
		ev Event
	}{
		{0, Event{Kind: Pending, VGPU: "k"}},
		{1 * ms, Event{Kind: Complete, VGPU: "k", LastWork: 1 * ms}},
		{5 * ms, Event{Kind: Pending, VGPU: "k"}}, // it rested
		{6 * ms, Event{Kind: Pending, VGPU: "h"}},
		{25 * ms, Event{Kind: Deadline, VGPU: "k"}},
		{4 * time.Second, Event{Kind: Deadline, VGPU: "k", Progress: true}}, // an overrun
		{100 * time.Hour, Event{Kind: Drained, VGPU: "k"}},
		{100*time.Hour + 1*ms, Event{Kind: Complete, VGPU: "h", LastWork: 5 * time.Second}},
		{100*time.Hour + 2*ms, Event{Kind: Pending, VGPU: "h"}},
		{100*time.Hour + 3*ms, Event{Kind: Pending, VGPU: "k"}},
	} {
		actions = e.Step(s.at, s.ev)
	}
	if want := 100*time.Hour + 22*ms; len(actions) != 2 || actions[1].Kind != Arm || actions[1].At != want {
		t.Errorf("%+v, want the turn of h to end at %v", actions, want)
	}
}

// What flows into a bucket in one step is less than a nanosecond here: all of it
// was lost, and a never had a turn again.
func TestSmallCapFillsInSmallSteps(t *testing.T) {
	e := New(Config{Window: time.Hour, Quantum: time.Microsecond})
	e.Step(0, Event{Kind: GPUUp, GPU: "g"})
	for _, id := range []ID{"a", "b"} {
		r := request.Request{Count: 1}
		if id == "a" {
			r.MaxShare = .00001
		}
		e.Step(0, Event{Kind: Added, VGPU: id, Request: r})
		e.Step(0, Event{Kind: Bind, VGPU: id})
		e.Step(0, Event{Kind: Pending, VGPU: id})
	}
	// It uses up its window, and b goes on in turns of 20 us.
	now := 36 * time.Millisecond
	e.Step(now, Event{Kind: Deadline, VGPU: "a"})
	e.Step(now, Event{Kind: Drained, VGPU: "a", LastWork: now, Waiting: true})
	for now < time.Second {
		now += 20 * time.Microsecond
		for _, a := range e.Step(now, Event{Kind: Complete, VGPU: "b", LastWork: now, Waiting: true}) {
			if a.Kind == Grant && a.VGPU == "a" {
				return
			}
		}
	}
	t.Errorf("no turn until %v", now)
}
