// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"testing"
	"time"

	"github.com/vgpu-shim/vgpu/vgpu/request"
)

// restarted is an engine after a restart, an hour after the turn of a began: b has
// waited for a second.
func restarted(req request.Request) (e *Engine, now time.Duration) {
	now = 10 * time.Hour
	e = New(Config{})
	e.Step(now, Event{Kind: GPUUp, GPU: "g", MemoryBytes: 1, Usage: Usage{Held: 50, Turns: 5}})
	e.Step(now, Event{Kind: GPUUp, GPU: "g", MemoryBytes: 1, Usage: Usage{Held: 70, Turns: 7}}) // not new any more
	e.Step(now, Event{Kind: GPUDown, GPU: "g", Reason: "recovering"})
	e.Step(now, Event{Kind: Added, VGPU: "a", Request: req, Usage: Usage{Held: 10, Waited: 3, Turns: 1}})
	e.Step(now, Event{Kind: Added, VGPU: "b", Request: request.Request{Count: 1}})
	e.Step(now, Event{Kind: Adopted, VGPU: "b", GPUs: []UUID{"g"}, Waiting: true, Since: now - time.Second})
	e.Step(now, Event{Kind: Adopted, VGPU: "a", GPUs: []UUID{"g"}, Holding: true, Since: now - time.Hour, Waited: 4})
	e.Step(now, Event{Kind: GPUUp, GPU: "g", MemoryBytes: 1})
	return e, now
}

func TestAnAdoptedTurnIsAccountedFromItsStart(t *testing.T) {
	e, now := restarted(request.Request{Count: 1})
	now += time.Millisecond
	e.Step(now, Event{Kind: Complete, VGPU: "a", LastWork: now, Idle: time.Minute})
	held := time.Hour + time.Millisecond - time.Minute
	if a, _ := e.VGPU("a"); a.Usage != (Usage{Held: held + 10, Waited: 7, Turns: 2}) {
		t.Errorf("%+v", a.Usage)
	}
	if g, ok := e.GPU("g"); !ok || g.Usage.Held != held+50 || g.Usage.Turns != 6 {
		t.Errorf("%+v", g)
	}
	if _, ok := e.GPU("other"); ok {
		t.Error("there is another GPU")
	}
	e.Step(now, Event{Kind: Complete, VGPU: "b", LastWork: now})
	if b, _ := e.VGPU("b"); b.Usage.Waited != time.Second+time.Millisecond {
		t.Errorf("%+v", b.Usage)
	}
}

// Nobody is owed for the hour in which a had the GPU to itself.
func TestAfterARestartTheHolderIsNotBehindTheOthers(t *testing.T) {
	e, now := restarted(request.Request{Count: 1})
	turns := make(map[ID]int)
	holder := ID("a")
	for range 20 {
		now += 20 * time.Millisecond
		s, _ := e.VGPU(holder)
		if s.State == Holding { // its quantum
			e.Step(now, Event{Kind: Deadline, VGPU: holder})
		}
		e.Step(now, Event{Kind: Drained, VGPU: holder, LastWork: now, Waiting: true})
		g, _ := e.GPU("g")
		holder = g.Holder
		turns[holder]++
	}
	if turns["a"] != 10 || turns["b"] != 10 {
		t.Errorf("%v", turns)
	}
}

// The cap has filled up for as long as the turn lasts.
func TestACapIsNotForgottenOverARestart(t *testing.T) {
	e, now := restarted(request.Request{Count: 1, MaxShare: 0.5})
	e.Step(now, Event{Kind: Deadline, VGPU: "a"})
	now += time.Millisecond
	e.Step(now, Event{Kind: Drained, VGPU: "a", LastWork: now, Waiting: true})
	// It held for an hour, of which half was its.
	e.Step(now, Event{Kind: Complete, VGPU: "b", LastWork: now})
	if _, capped := e.capped(now+50*time.Minute, e.vgpus["a"].gang); !capped {
		t.Error("it may go on too early")
	}
	if _, capped := e.capped(now+70*time.Minute, e.vgpus["a"].gang); capped {
		t.Error("it may not go on when it paid all back")
	}
}
